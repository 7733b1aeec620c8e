"""A contender: one way to do a piece of work, in a process of its own, which is stopped until it is asked.

OpenBLAS's threads spin after a product and slow down whatever runs beside them: torch's small operations in the same process
up to 45 times; and for 105 ms after the last call (2 cores, OpenBLAS 0.3.31) one core of two was taken from the next process,
which then took twice its time. So no two libraries share a process, and a process that is not asked has no core.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, Self

from .work import Work, timed


class ContenderFailed(RuntimeError):
    """A contender raised, or its process died. The traceback is on standard error."""


class Contender:
    """The process of one contender, for a ``with`` block.

    build: a function of a module, called in the process with ``arguments``; both must pickle.
    """

    def __init__(self, name: str, build: Callable[..., Work], *arguments: Any) -> None:
        if not hasattr(signal, "SIGSTOP"):
            raise OSError("contenders are stopped while others run, by SIGSTOP, which this system has not")
        self.name = name
        spawn = multiprocessing.get_context("spawn")
        self._pipe, there = spawn.Pipe()
        self._process = spawn.Process(target=_serve, args=(there, build, arguments), daemon=True)
        self._process.start()
        there.close()  # so that a dead process is the end of the pipe

    def answer(self) -> Any:
        """The result of one call. Raises ContenderFailed."""
        return self._ask(None)

    def time(self, calls: int) -> float:
        """Seconds that so many calls took together. Raises ContenderFailed."""
        seconds: float = self._ask(calls)
        return seconds

    def _ask(self, calls: int | None) -> Any:
        self._signal(signal.SIGCONT)
        try:
            self._pipe.send(calls)
            failed, reply = self._pipe.recv()
        except (EOFError, OSError) as error:
            self._process.join()
            raise ContenderFailed(f"the process of {self.name} died with exit status {self._process.exitcode}") from error
        self._signal(signal.SIGSTOP)
        if failed:
            raise ContenderFailed(f"{self.name}: {reply}")
        return reply

    def _signal(self, number: signal.Signals) -> None:
        """To the process, unless it has died: what is asked next finds that out."""
        if self._process.is_alive() and self._process.pid is not None:
            os.kill(self._process.pid, number)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._signal(signal.SIGCONT)
        self._pipe.close()  # which ends the process
        self._process.join()


def _serve(pipe: Connection, build: Callable[..., Work], arguments: tuple[Any, ...]) -> None:
    """Answer until the pipe is closed: None asks for the result of a call, a number for the time of so many."""
    work: Work | None = None
    while True:
        try:
            calls = pipe.recv()
        except EOFError:
            return
        try:
            work = work or build(*arguments)
            with work.mode():
                reply = (False, work.read(work.call()) if calls is None else timed(work, calls))
        except Exception as error:  # told to the parent, which raises it
            traceback.print_exc()
            reply = (True, f"{type(error).__name__}: {error}")
        pipe.send(reply)
