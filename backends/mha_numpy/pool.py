"""Threads that help whoever calls: started on first need, kept for the life of the process, asleep between calls.

The caller takes parts from the same queue as its helpers, and never waits for one that has not begun: so callers may be many.
Threads at work, callers and helpers together, are at most ``num_threads()``; where there are more callers than that, helpers
leave the work to them at the next part.
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

_NONE: Any = object()


class _Inside(threading.local):
    part = False


_inside = _Inside()


def inside_a_part() -> bool:
    """Whether this thread is at work on a part."""
    return _inside.part


class Parts:
    """One caller's parts, in a ``with`` whose end waits for those that have begun, and raises the first exception of any.

    Once one has raised, no other begins.
    """

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self.waiting: deque[Any] = deque()
        self.helpers = 0
        self._function, self._context = function, copy_context()
        self._changed = threading.Condition(_pool.lock)  # a helper has ended a part, or left
        self._error: BaseException | None = None

    def __enter__(self) -> Self:
        with _pool.lock:
            _pool.calls.append(self)
        return self

    def add(self, items: Iterable[Any]) -> None:
        """More of them, in the order in which they are to begin."""
        items = list(items)
        with _pool.lock:
            if self._error is None:
                self.waiting.extend(items)

    def work(self, until: Callable[[], bool] | None = None) -> None:
        """The caller's share: until no part is left to begin, or until ``until()``, for which it waits."""
        _pool.enter(len(self.waiting) - 1)
        _inside.part = True
        try:
            self._work(until=until)
        finally:
            _inside.part = False
            _pool.leave()
        if until is not None:
            with _pool.lock:
                while not until():
                    if self._error is not None:
                        raise self._error
                    self._changed.wait()

    def help(self) -> None:
        """A helper's share."""
        self._context.copy().run(self._work, helper=True)

    def left(self) -> None:
        """A helper has gone; the pool's lock is held."""
        self.helpers -= 1
        self._changed.notify()

    def fail(self, error: BaseException) -> None:
        with _pool.lock:
            if self._error is None:
                self._error = error
            self.waiting.clear()

    def __exit__(self, kind: object, *_: object) -> None:
        with _pool.lock:
            self.waiting.clear()
            while self.helpers:
                try:
                    self._changed.wait()
                except BaseException as interrupt:  # raised below, when nobody works on the caller's arrays any more
                    self.fail(interrupt)
            if self in _pool.calls:  # in a process that was forked meanwhile it is not
                _pool.calls.remove(self)
        error, self._error = self._error, None
        if error is not None and kind is None:
            try:
                raise error
            finally:
                del error  # it knows this frame

    def _work(self, *, until: Callable[[], bool] | None = None, helper: bool = False) -> None:
        with blas.one_thread:
            while (item := self._next(helper)) is not _NONE:
                try:
                    self._function(item)
                except BaseException as error:  # raised in the caller
                    self.fail(error)
                if until is not None and until():
                    return

    def _next(self, helper: bool) -> Any:
        with _pool.lock:
            if helper:
                self._changed.notify()
                if _pool.at_work > num_threads():
                    return _NONE
            return self.waiting.popleft() if self.waiting else _NONE


class _Pool:
    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.reset()

    def reset(self) -> None:
        self.calls: list[Parts] = []
        self.at_work = self.helpers = self.idle = 0
        self.wanted = threading.Condition(self.lock)

    def enter(self, parts: int) -> None:
        """A caller begins; as many helpers are called as there are parts and cores for."""
        with self.lock:
            self.at_work += 1
            wanted = min(parts, num_threads() - self.at_work)
            missing = min(wanted - self._wake(wanted), num_threads() - 1 - self.helpers)
            self.helpers += max(0, missing)
        for at in range(missing):
            try:
                threading.Thread(target=self._help, name="mha-numpy", daemon=True).start()
            except RuntimeError:  # no more threads to be had, as when the interpreter ends: the caller does the work
                with self.lock:
                    self.helpers -= missing - at
                return

    def leave(self) -> None:
        """A caller ends, and a core is free for another's parts."""
        with self.lock:
            self.at_work = max(0, self.at_work - 1)  # in a forked process nobody is counted who began before
            if self.at_work < num_threads() and any(call.waiting for call in self.calls):
                self._wake(1)

    def _wake(self, count: int) -> int:
        count = max(0, min(count, self.idle))
        self.idle -= count
        self.wanted.notify(count)
        return count

    def _help(self) -> None:
        _inside.part = True
        wanted = self.wanted
        while wanted is self.wanted:  # in a forked process it is another: this thread is all that there is
            with self.lock:
                while (call := self._join()) is None:
                    self.idle += 1
                    wanted.wait()
            try:
                call.help()
            finally:
                with self.lock:
                    self.at_work -= 1
                    call.left()

    def _join(self) -> Parts | None:
        """The call with parts waiting that has the fewest helpers, if a core is free."""
        waiting = [call for call in self.calls if call.waiting]
        if not waiting or self.at_work >= num_threads():
            return None
        call = min(waiting, key=lambda call: call.helpers)
        call.helpers += 1
        self.at_work += 1
        return call


_pool = _Pool()


def _forget() -> None:
    """In a forked process: all other threads are in the other one, and what they were at."""
    calls = _pool.calls
    _pool.reset()
    _inside.part = False
    for call in calls:
        if call.helpers:
            call.helpers = 0
            call.fail(RuntimeError("this process was forked while other threads computed parts of the call: they are lost"))
    _pool.lock.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_pool.lock.acquire, after_in_parent=_pool.lock.release, after_in_child=_forget)
