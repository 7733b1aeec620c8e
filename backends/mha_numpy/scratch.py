"""Memory that a thread uses again and again, so that tiles stay in cache and no page is asked for twice."""

from __future__ import annotations

import math
import threading
from typing import Any

import numpy as np

_own = threading.local()


def scratch(name: str, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """An array of this thread's own, with anything in it; the next call with this name takes it back."""
    size = math.prod(shape) * dtype.itemsize
    buffer = _own.__dict__.get(name)
    if buffer is None or buffer.size < size:
        buffer = _own.__dict__[name] = np.empty(size, dtype=np.uint8)
    return buffer[:size].view(dtype).reshape(shape)


def usable(x: np.ndarray, dtype: Any) -> bool:
    """Whether a BLAS can read this stack of matrices where it lies."""
    item, (row, column) = x.itemsize, x.strides[-2:]
    return x.dtype == dtype and column == item and row >= item * x.shape[-1] and row % item == 0 and x.flags.aligned


def as_usable(x: np.ndarray, dtype: Any, name: str) -> np.ndarray:
    """As it is, or a copy in scratch."""
    if usable(x, dtype):
        return x
    copy = scratch(name, x.shape, dtype)
    np.copyto(copy, x)
    return copy
