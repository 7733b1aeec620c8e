"""A pool of helper threads that all callers share.

Helpers start when they are first needed, live as long as the process, and sleep between calls. A caller takes tasks from the
same queue as its helpers and never waits for a task that has not begun, so any number of threads may call at the same time. At
most ``num_threads()`` threads work at a time, callers and helpers together. If there are more callers than that, helpers leave
after their current task.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable
from contextvars import copy_context
from typing import Any, Self

from . import blas
from .cores import num_threads
from .interrupts import Shield, shielded

_NONE: Any = object()


class _Inside(threading.local):
    """``task``: True while this thread computes a task."""

    task = False


_inside = _Inside()


def inside_a_task() -> bool:
    """Return whether this thread is computing a task."""
    return _inside.task


def threads_here() -> int:
    """Return how many threads may compute for this one: 1 inside of a task."""
    return 1 if _inside.task else num_threads()


class TaskQueue:
    """One caller's tasks, as a context manager. Its exit waits for the tasks that have begun and raises the first exception.

    Once a task has raised, no other task begins. Outside of ``shielded`` it is entered twice, ``with queue, queue``: Ctrl-C may
    come before the first exit has begun.
    """

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self.waiting: deque[Any] = deque()
        self.helpers = 0
        self._function, self._context = function, copy_context()
        self._changed = threading.Condition(_pool.lock)  # a helper has finished a task, or left
        self._error: BaseException | None = None

    def __enter__(self) -> Self:
        return self

    def add(self, items: Iterable[Any]) -> None:
        """Add a task for each item; tasks begin in this order."""
        shielded(self._add, list(items))

    def _add(self, _: Shield, items: list[Any]) -> None:
        with _pool.lock:
            if self not in _pool.queues:
                _pool.queues.append(self)
            if self._error is None:
                self.waiting.extend(items)

    def call_helpers(self) -> None:
        """Wake or start helpers for the waiting tasks, which the caller will not compute."""
        shielded(lambda _: _pool.call(len(self.waiting)))

    def work(self, until: Callable[[], bool] | None = None) -> None:
        """Compute tasks in the caller's thread until none is left to begin.

        With ``until``, stop once ``until()`` is true; if no task is left before that, wait for it.
        """
        shielded(self._work_and_wait, until)

    def _work_and_wait(self, shield: Shield, until: Callable[[], bool] | None) -> None:
        _pool.enter(len(self.waiting) - 1)
        _inside.task = True
        try:
            self._work(shield, until=until)
        finally:
            _inside.task = False
            _pool.leave()
        if until is not None:
            with _pool.lock:
                while not until():
                    if self._error is not None:
                        raise self._error
                    self._changed.wait()

    def help(self) -> None:
        """Compute tasks in a helper's thread, in the caller's context."""
        self._context.copy().run(self._work, Shield(), helper=True)

    def left(self) -> None:
        """Record that a helper has left. The calling thread holds the pool's lock."""
        self.helpers -= 1
        self._changed.notify()

    def fail(self, error: BaseException) -> None:
        """Keep the first exception, and prevent further tasks from beginning."""
        with _pool.lock:
            if self._error is None:
                self._error = error
            self.waiting.clear()

    def compute(self, shield: Shield, items: list[Any]) -> None:
        """Compute a task for each item."""
        try:
            self._add(shield, items)
            self._work_and_wait(shield, None)
        finally:
            self._close(shield)
        self._raise()

    def __exit__(self, kind: object, *_: object) -> None:
        shielded(self._close)
        if kind is None:
            self._raise()

    def _raise(self) -> None:
        error, self._error = self._error, None
        if error is not None:
            try:
                raise error
            finally:
                del error  # it refers to this frame

    def _close(self, _: Shield) -> None:
        with _pool.lock:
            self.waiting.clear()
            while self.helpers:
                try:
                    self._changed.wait()
                except BaseException as interrupt:  # raised below, once no helper uses the caller's arrays
                    self.fail(interrupt)
            if self in _pool.queues:  # a process forked meanwhile has removed it
                _pool.queues.remove(self)

    def _work(self, shield: Shield, *, until: Callable[[], bool] | None = None, helper: bool = False) -> None:
        with blas.one_thread:
            while until is None or not until():
                item = self._next(helper)
                if item is _NONE:
                    return
                try:
                    shield.compute(self._function, item)
                except BaseException as error:  # raised in the caller
                    self.fail(error)

    def _next(self, helper: bool) -> Any:
        """Return the next item; _NONE if there is none, or if a helper must leave its core to a caller."""
        with _pool.lock:
            if helper:
                self._changed.notify()
                if _pool.at_work > num_threads():
                    return _NONE
            return self.waiting.popleft() if self.waiting else _NONE


class _Pool:
    """The helper threads, and the queues that they serve."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.reset()

    def reset(self) -> None:
        self.queues: list[TaskQueue] = []
        self.at_work = self.helpers = self.idle = 0
        self.wanted = threading.Condition(self.lock)

    def enter(self, tasks: int) -> None:
        """Record that a caller begins to work, and call helpers for its tasks."""
        with self.lock:
            self.at_work += 1
        self.call(tasks)

    def call(self, tasks: int) -> None:
        """Wake or start helpers for tasks, at most one for each free core."""
        with self.lock:
            wanted = min(tasks, num_threads() - self.at_work)
            missing = min(wanted - self._wake(wanted), num_threads() - 1 - self.helpers)
            self.helpers += max(0, missing)
        for at in range(missing):
            try:
                threading.Thread(target=self._help, name="mha-numpy", daemon=True).start()
            except RuntimeError:  # no thread can be started, e.g. when the interpreter ends: the caller does the work
                with self.lock:
                    self.helpers -= missing - at
                return

    def leave(self) -> None:
        """Record that a caller stops working; wake a helper if tasks of another caller wait for a core."""
        with self.lock:
            self.at_work = max(0, self.at_work - 1)  # a forked process does not count callers from before
            if self.at_work < num_threads() and any(queue.waiting for queue in self.queues):
                self._wake(1)

    def _wake(self, count: int) -> int:
        """Wake up to ``count`` sleeping helpers; return how many."""
        count = max(0, min(count, self.idle))
        self.idle -= count
        self.wanted.notify(count)
        return count

    def _help(self) -> None:
        """The loop of a helper thread."""
        _inside.task = True
        wanted = self.wanted
        while wanted is self.wanted:  # in a process forked inside a task it differs, and the thread ends
            with self.lock:
                while (queue := self._join()) is None:
                    self.idle += 1
                    wanted.wait()
            try:
                queue.help()
            finally:
                with self.lock:
                    self.at_work -= 1
                    queue.left()

    def _join(self) -> TaskQueue | None:
        """Join the queue with tasks waiting that has the fewest helpers; None if there is none, or no core is free."""
        waiting = [queue for queue in self.queues if queue.waiting]
        if not waiting or self.at_work >= num_threads():
            return None
        queue = min(waiting, key=lambda queue: queue.helpers)
        queue.helpers += 1
        self.at_work += 1
        return queue


_pool = _Pool()


def _forget() -> None:
    """Reset the pool in a forked process, which has no other threads; the tasks that they computed are lost."""
    queues = _pool.queues
    _pool.reset()
    _inside.task = False
    for queue in queues:
        if queue.helpers:
            queue.helpers = 0
            queue.fail(
                RuntimeError("this process was forked while other threads computed tasks of the call; their results are lost")
            )
    _pool.lock.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_pool.lock.acquire, after_in_parent=_pool.lock.release, after_in_child=_forget)
