"""The BLAS that NumPy multiplies with, held at one thread while Python threads do the work.

Its number of threads belongs to the process: the first who holds it sets it, the last one of several puts it back.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy

SMALL = 1 << 18  # multiplications of which OpenBLAS makes one thread's work, whoever holds it: other threads, other bits

_lock = threading.Lock()
_held = 0  # by how many, at this moment
_count = 0  # while it is held: what to put back
_unlimited: int | None = None  # while set_count limits it: what it was before


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
            if _held == 0:  # held by whom was forked, and the new process has let go of it
                return
            _held -= 1
            if _held == 0 and _count != 1:
                calls[1](_count)


one_thread = _OneThread()
"""``with one_thread:`` in any number of threads, one in the other too; nothing happens where the BLAS cannot be held."""


def can_hold() -> bool:
    """Whether the BLAS says how many threads it takes, and obeys."""
    return functions() is not None


def set_count(count: int | None) -> None:
    """How many threads a product takes while nobody holds the BLAS; None: as many as before this was first called."""
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
    """OpenBLAS's own reading and writing of its thread count, as NumPy's wheels carry it; None for any other BLAS."""
    package = Path(numpy.__file__).parent
    for folder in (package.parent / "numpy.libs", package / ".dylibs"):
        for path in sorted(folder.glob("*openblas*")):
            library = ctypes.PyDLL(str(path))  # to let go of the interpreter would take longer than the call, and lose the turn
            for name in ("scipy_openblas_{}64_", "scipy_openblas_{}", "openblas_{}64_", "openblas_{}"):
                read = getattr(library, name.format("get_num_threads"), None)
                write = getattr(library, name.format("set_num_threads"), None)
                if read is not None and write is not None:
                    read.argtypes, write.argtypes, write.restype = (), (ctypes.c_int,), None
                    return read, write
    return None


def _let_go() -> None:
    """In a forked process: those who held the BLAS are threads of the other one."""
    global _held
    calls = functions()
    if _held and calls is not None:
        calls[1](_count)
    _held = 0
    _lock.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_let_go)
