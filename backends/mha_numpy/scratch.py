"""Scratch memory that a thread reuses from call to call.

Tiles then stay in cache, and no new pages are requested.
"""

from __future__ import annotations

import math
import threading
from typing import Any

import numpy as np

_own = threading.local()


def scratch(name: str, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """Return an uninitialised array, valid until this thread requests the same name again."""
    size = math.prod(shape) * dtype.itemsize
    buffer = _own.__dict__.get(name)
    if buffer is None or buffer.size < size:
        buffer = _own.__dict__[name] = np.empty(size, dtype=np.uint8)
    return buffer[:size].view(dtype).reshape(shape)


def readable_by_blas(x: np.ndarray, dtype: Any) -> bool:
    """Return whether a BLAS can read this stack of matrices without a copy."""
    item, (row, column) = x.itemsize, x.strides[-2:]
    return x.dtype == dtype and column == item and row >= item * x.shape[-1] and row % item == 0 and x.flags.aligned


def for_blas(x: np.ndarray, dtype: Any, name: str) -> np.ndarray:
    """Return the array itself if a BLAS can read it, else a copy in ``scratch(name, ...)``."""
    if readable_by_blas(x, dtype):
        return x
    copy = scratch(name, x.shape, dtype)
    np.copyto(copy, x)
    return copy
