"""A worker process for one unit of work, suspended between its turns.

OpenBLAS's threads spin after a product and slow down whatever else is running. torch's small operations in the same process
took up to 45 times as long. After the last call the threads occupied one core of two for 105 ms (2 cores, OpenBLAS 0.3.31), and
the next process took twice its time. Therefore no two libraries share a process, and a process runs only during its turn.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from multiprocessing.connection import Connection
from typing import Any, Self, TypeAlias

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
        self._process = spawn.Process(target=_serve, args=(far_end, build, arguments, os.getpid()), daemon=True)
        with _uninterrupted():
            self._process.start()
        far_end.close()  # now a dead process closes the pipe

    def take(self, build: Callable[..., Work], *arguments: Any) -> None:
        """Replace the work by another. Raises WorkerFailed if the process has died."""
        self._ask((build, arguments))

    def is_alive(self) -> bool:
        return self._process.is_alive()

    def answer(self) -> Any:
        """Return the result of one call. Raises WorkerFailed."""
        return self._ask(None)

    def time(self, calls: int) -> float:
        """Return the seconds that this many calls took together. Raises WorkerFailed."""
        seconds: float = self._ask(calls)
        return seconds

    def _ask(self, request: Any) -> Any:
        self._signal(signal.SIGCONT)
        try:
            self._pipe.send(request)
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
        if self.is_alive() and self._process.pid is not None:
            os.kill(self._process.pid, number)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self._process.kill()  # nobody waits for the rest of a call
        self._signal(signal.SIGCONT)
        self._pipe.close()  # this ends the process
        self._process.join()


Start: TypeAlias = Callable[..., AbstractContextManager[Worker]]
"""Called with the name of a worker, a function that returns its work, and arguments: ``Worker`` itself, or ``Crew.worker``."""


class Crew:
    """Workers by name, each of which gets one work after another; use it in a ``with`` block.

    Starting a process takes longer than a short case. The speed of a process depends on what is fixed when it starts, so a
    crew is for a first impression.
    """

    def __init__(self) -> None:
        self._workers: dict[str, Worker] = {}
        self._stack = ExitStack()

    @contextmanager
    def worker(self, name: str, build: Callable[..., Work], *arguments: Any) -> Iterator[Worker]:
        """Yield the worker of this name with this work; the process goes on afterwards."""
        if name in self._workers and self._workers[name].is_alive():
            self._workers[name].take(build, *arguments)
        else:
            self._workers[name] = self._stack.enter_context(Worker(name, build, *arguments))
        yield self._workers[name]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: Any) -> None:
        self._stack.__exit__(*error)


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Make processes that start meanwhile ignore Ctrl-C, which goes to the whole group; this one gets it later."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _end_with(parent: int) -> None:
    """Let Linux kill this process when its parent ends: while it is suspended, it does not see that the pipe is closed."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
        if os.getppid() != parent:  # it ended before
            sys.exit()


def _serve(pipe: Connection, build: Callable[..., Work], arguments: tuple[Any, ...], parent: int) -> None:
    """Answer requests until the pipe is closed.

    None asks for the result of one call, a number for the time of that many, and a pair (build, arguments) replaces the work.
    """
    _end_with(parent)
    work: Work | None = None
    while True:
        try:
            request = pipe.recv()
        except EOFError:
            return
        if isinstance(request, tuple):
            work, (build, arguments) = None, request
            pipe.send((False, None))
            continue
        try:
            work = work or build(*arguments)
            with work.mode():
                reply = (False, work.answer() if request is None else timed(work, request))
        except Exception as error:  # the parent raises it
            traceback.print_exc()
            reply = (True, f"{type(error).__name__}: {error}")
        pipe.send(reply)
