"""All cores for work that falls into independent parts: a Python thread for each, the BLAS held to one thread meanwhile.

NumPy lets go of the interpreter inside its loops and products, so threads run side by side; a product that is itself
threaded leaves a core idle in everything between two products. Where the BLAS offers no way to say how many threads it
takes, the parts run one after another, and the BLAS threads as it likes.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import numpy

_inside = threading.local()
_lock = threading.Lock()
_held = 0
_before = 0


def num_threads() -> int:
    """The cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def parallel(function: Callable[[Any], Any], items: Iterable[Any]) -> Iterator[Any]:
    """The results in the order of the items. A call from inside a part runs its own parts one after another."""
    parts = list(items)
    workers = min(num_threads(), len(parts))
    if workers < 2 or _blas() is None or getattr(_inside, "parallel", False):
        yield from map(function, parts)
        return
    with one_blas_thread(), ThreadPoolExecutor(workers, "mha-numpy", initializer=_mark) as pool:
        yield from pool.map(function, parts)


def _mark() -> None:
    _inside.parallel = True


@contextlib.contextmanager
def one_blas_thread() -> Iterator[None]:
    """The count is the process's: the first caller sets it, the last one of several restores it."""
    global _held, _before
    read, write = _blas() or (lambda: 1, lambda n: None)
    with _lock:
        if _held == 0:
            _before = read()
            write(1)
        _held += 1
    try:
        yield
    finally:
        with _lock:
            _held -= 1
            if _held == 0:
                write(_before)


@cache
def _blas() -> tuple[Callable[[], int], Callable[[int], None]] | None:
    """OpenBLAS's own reading and writing of its thread count, as NumPy's wheels carry it."""
    package = Path(numpy.__file__).parent
    for folder in (package.parent / "numpy.libs", package / ".dylibs"):
        for path in sorted(folder.glob("*openblas*")):
            library = ctypes.CDLL(str(path))
            for name in ("scipy_openblas_{}64_", "scipy_openblas_{}", "openblas_{}64_", "openblas_{}"):
                read = getattr(library, name.format("get_num_threads"), None)
                write = getattr(library, name.format("set_num_threads"), None)
                if read is not None and write is not None:
                    return read, write
    return None


def run(function: Callable[[Any], Any], items: Iterable[Any]) -> None:
    for _ in parallel(function, items):
        pass
