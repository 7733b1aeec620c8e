"""A contender: one way to do a piece of work, in a process of its own that waits until it is asked.

OpenBLAS's threads spin for a while after a product and slow down whatever runs beside them (torch's small operations up to
45 times), so no two libraries share a process, and only one process works at a time.
"""

from __future__ import annotations

import multiprocessing
import time
import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import repeat
from multiprocessing.connection import Connection
from typing import Any, Self


def _nothing() -> None:
    """What to wait for where a call returns when its work is done."""


@dataclass(frozen=True)
class Work:
    """What a contender does.

    call: the work; read: its result as NumPy; wait: until all calls are done, on a device; mode: what all calls run inside.
    """

    call: Callable[[], Any]
    read: Callable[[Any], Any]
    wait: Callable[[], None] = _nothing
    mode: Callable[[], AbstractContextManager[Any]] = nullcontext


class ContenderFailed(RuntimeError):
    """A contender raised, or its process died; the message holds what it said."""


class Contender:
    """The process of one contender, for a ``with`` block.

    build: a function of a module, called in the process with ``arguments``; both must pickle.
    """

    def __init__(self, name: str, build: Callable[..., Work], *arguments: Any) -> None:
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
        try:
            self._pipe.send(calls)
            failed, reply = self._pipe.recv()
        except (EOFError, OSError) as error:
            self._process.join()
            raise ContenderFailed(f"the process of {self.name} died with exit status {self._process.exitcode}") from error
        if failed:
            raise ContenderFailed(f"{self.name}: {reply}")
        return reply

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
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
                reply = (False, work.read(work.call()) if calls is None else _timed(work, calls))
        except Exception:  # told to the parent, which raises it
            reply = (True, traceback.format_exc())
        pipe.send(reply)


def _timed(work: Work, calls: int) -> float:
    call, wait = work.call, work.wait
    start = time.perf_counter()
    for _ in repeat(None, calls):
        call()
    wait()
    return time.perf_counter() - start
