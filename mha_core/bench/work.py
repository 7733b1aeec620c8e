"""A piece of work to be timed, and how it is timed."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import repeat
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mha_core.dispatch.backend import LoadedBackend


@dataclass(frozen=True)
class Work:
    """What is done.

    call: the work; read: its result as NumPy; wait: until all calls are done, where they return before that; mode: what all
    calls run inside.
    """

    call: Callable[[], Any]
    read: Callable[[Any], Any]
    wait: Callable[[], None] | None = None
    mode: Callable[[], AbstractContextManager[Any]] = nullcontext


def loaded(name: str) -> LoadedBackend:
    """A backend, ours or anyone's. Raises UnknownBackend and BackendUnavailable."""
    from mha_core.dispatch.backend import load
    from mha_core.dispatch.selection import check_name

    return load(check_name(name))


def on(backend: LoadedBackend, call: Callable[[], Any]) -> Work:
    """A call that gives an array of this backend.

    Where the backend cannot wait for all that was begun, each answer is read before the next call: it may not be there yet.
    """
    wait, read = backend.record.synchronize, backend.to_numpy
    return Work(lambda: read(call()), lambda numbers: numbers) if wait is None else Work(call, read, wait)


def timed(work: Work, calls: int) -> float:
    """Seconds that so many calls take together."""
    call = work.call
    start = time.perf_counter()
    for _ in repeat(None, calls):
        call()
    if work.wait is not None:
        work.wait()
    return time.perf_counter() - start


def calibrated(timed: Callable[[int], float], sample: float) -> int:
    """How many calls take that many seconds. timed: what so many calls take."""
    calls = 1
    while (seconds := timed(calls)) < sample:
        calls = max(2 * calls, math.ceil(calls * sample / seconds))
    return calls


def duration(seconds: float) -> str:
    """With three digits, in the unit that suits it."""
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 1e-6:.3g} us"
