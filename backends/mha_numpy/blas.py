"""The thread count of NumPy's BLAS, held at one while Python threads do the work.

To hold the BLAS is to keep its thread count at one. The count belongs to the process: the first thread that holds the BLAS sets
it, the last that lets go restores it.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy

SMALL = 1 << 18  # multiplications; up to this size OpenBLAS uses one thread, held or not, so results have the same bits

_lock = threading.Lock()
_held = 0  # how many threads hold the BLAS now
_count = 0  # while it is held: the count to restore
_unlimited: int | None = None  # while set_count limits it: the count from before


class _OneThread:
    def __enter__(self) -> None:
        global _held, _count
        calls = functions()
        if calls is None:
            return
        with _lock:
            if _held == 0:
                _count = calls[0]()
                if _count != 1:
                    calls[1](1)
            _held += 1

    def __exit__(self, *_: object) -> None:
        global _held
        calls = functions()
        if calls is None:
            return
        with _lock:
            if _held == 0:  # the process was forked while it was held, and _let_go ran
                return
            _held -= 1
            if _held == 0 and _count != 1:
                calls[1](_count)


one_thread = _OneThread()
"""``with one_thread:`` holds the BLAS, in any number of threads, also nested. It does nothing if the BLAS cannot be held."""


def can_hold() -> bool:
    """Return whether the thread count of this BLAS can be read and set."""
    return functions() is not None


def set_count(count: int | None) -> None:
    """Set the thread count of the BLAS while it is not held; None restores the count from before the first call."""
    global _count, _unlimited
    calls = functions()
    if calls is None:
        return
    with _lock:
        now = _count if _held else calls[0]()
        if count is None:
            count, _unlimited = _unlimited, None
        elif _unlimited is None:
            _unlimited = now
        if count is None:
            return
        if _held:
            _count = count
        else:
            calls[1](count)


@cache
def functions() -> tuple[Callable[[], int], Callable[[int], None]] | None:
    """Return the functions that read and set the thread count of the OpenBLAS in NumPy's wheels; None for any other BLAS."""
    package = Path(numpy.__file__).parent
    for folder in (package.parent / "numpy.libs", package / ".dylibs"):
        for path in sorted(folder.glob("*openblas*")):
            library = ctypes.PyDLL(str(path))  # releasing the interpreter lock would take longer than the call
            for name in ("scipy_openblas_{}64_", "scipy_openblas_{}", "openblas_{}64_", "openblas_{}"):
                read = getattr(library, name.format("get_num_threads"), None)
                write = getattr(library, name.format("set_num_threads"), None)
                if read is not None and write is not None:
                    read.argtypes, write.argtypes, write.restype = (), (ctypes.c_int,), None
                    return read, write
    return None


def _let_go() -> None:
    """Restore the count in a forked process, where the threads that held the BLAS do not exist."""
    global _held
    calls = functions()
    if _held and calls is not None:
        calls[1](_count)
    _held = 0
    _lock.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_let_go)
