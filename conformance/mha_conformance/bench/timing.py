"""A unit of work, and how long calls of it take."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import repeat
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from mha_core.shared import LoadedBackend


@dataclass(frozen=True)
class Work:
    """A unit of work to be timed."""

    call: Callable[[], Any]
    """Do the work and return its result."""
    read: Callable[[Any], Any]
    """Convert the result to NumPy."""
    wait: Callable[[], None] | None = None
    """Wait for all work to finish, if calls return before their work is done."""
    mode: Callable[[], AbstractContextManager[Any]] = nullcontext
    """Context manager that all calls run in."""

    def answer(self) -> Any:
        """Do the work and return its result in NumPy."""
        return self.read(self.call())


def loaded(name: str) -> LoadedBackend:
    """Load a backend by name. Raises UnknownBackend and BackendUnavailable."""
    try:
        from mha_core.shared import check_name, load
    except ModuleNotFoundError:  # asv measures a commit without this module
        from mha_core.dispatch.backend import load
        from mha_core.dispatch.selection import check_name

    return load(check_name(name))


def on(backend: LoadedBackend, call: Callable[[], Any], *, wide: bool = False) -> Work:
    """Return the work of a call whose result is an array of this backend; ``wide``: it is read as float32.

    If the backend cannot wait for its queued work, each answer is read before the next call, since it may not be computed yet.
    """
    wait = backend.record.synchronize

    def read(x: Any) -> Any:
        return backend.to_numpy(backend.xp.astype(x, backend.xp.float32) if wide else x)

    return Work(lambda: read(call()), lambda numbers: numbers) if wait is None else Work(call, read, wait)


def aligned(numbers: np.ndarray) -> np.ndarray:
    """Return a copy that begins at a multiple of 64 bytes, as torch's own arrays do.

    Libraries choose the loop of a matrix product by that, and NumPy's arrays begin anywhere: 1% of the instructions.
    """
    memory = np.empty(numbers.nbytes + 64, dtype=np.uint8)
    start = -memory.ctypes.data % 64
    copy: np.ndarray = memory[start : start + numbers.nbytes].view(numbers.dtype).reshape(numbers.shape)
    copy[...] = numbers
    return copy


def timed(work: Work, calls: int) -> float:
    """Return the seconds that this many calls take together."""
    call = work.call
    start = time.perf_counter()
    for _ in repeat(None, calls):
        call()
    if work.wait is not None:
        work.wait()
    return time.perf_counter() - start


def calibrated(timed: Callable[[int], float], sample: float) -> int:
    """Return the number of calls that take at least ``sample`` seconds. ``timed(calls)`` returns the seconds of that many."""
    calls = 1
    while (seconds := timed(calls)) < sample:
        calls = max(2 * calls, math.ceil(calls * sample / seconds))
    return calls


def duration(seconds: float) -> str:
    """Format seconds with three digits, in s, ms or us."""
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 1e-6:.3g} us"
