"""A worker process for one unit of work, suspended between its turns.

OpenBLAS's threads spin after a product and slow down whatever else is running. torch's small operations in the same process
took up to 45 times as long. After the last call the threads occupied one core of two for 105 ms (2 cores, OpenBLAS 0.3.31), and
the next process took twice its time. Therefore no two libraries share a process, and a process runs only during its turn.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, Self

from .timing import Work, timed


class WorkerFailed(RuntimeError):
    """The work raised an exception, or its process died. The traceback is on standard error."""


class Worker:
    """A process for one unit of work; use it in a ``with`` block.

    Parameters
    ----------
    name
        Name for error messages.
    build
        Function that returns the work; called in the process with ``arguments``. Both must be picklable.
    """

    def __init__(self, name: str, build: Callable[..., Work], *arguments: Any) -> None:
        if not hasattr(signal, "SIGSTOP"):
            raise OSError("benchmarks suspend processes with SIGSTOP, which this system lacks")
        self.name = name
        spawn = multiprocessing.get_context("spawn")
        self._pipe, far_end = spawn.Pipe()
        self._process = spawn.Process(target=_serve, args=(far_end, build, arguments), daemon=True)
        self._process.start()
        far_end.close()  # now a dead process closes the pipe

    def answer(self) -> Any:
        """Return the result of one call. Raises WorkerFailed."""
        return self._ask(None)

    def time(self, calls: int) -> float:
        """Return the seconds that this many calls took together. Raises WorkerFailed."""
        seconds: float = self._ask(calls)
        return seconds

    def _ask(self, calls: int | None) -> Any:
        self._signal(signal.SIGCONT)
        try:
            self._pipe.send(calls)
            failed, reply = self._pipe.recv()
        except (EOFError, OSError) as error:
            self._process.join()
            raise WorkerFailed(f"the process of {self.name} died with exit status {self._process.exitcode}") from error
        self._signal(signal.SIGSTOP)
        if failed:
            raise WorkerFailed(f"{self.name}: {reply}")
        return reply

    def _signal(self, number: signal.Signals) -> None:
        """Send a signal to the process, unless it has died; the next request reports that."""
        if self._process.is_alive() and self._process.pid is not None:
            os.kill(self._process.pid, number)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._signal(signal.SIGCONT)
        self._pipe.close()  # this ends the process
        self._process.join()


def _serve(pipe: Connection, build: Callable[..., Work], arguments: tuple[Any, ...]) -> None:
    """Answer requests until the pipe is closed: None asks for the result of one call, a number for the time of that many."""
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
        except Exception as error:  # the parent raises it
            traceback.print_exc()
            reply = (True, f"{type(error).__name__}: {error}")
        pipe.send(reply)
