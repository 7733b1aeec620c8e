"""Scratch memory that a thread reuses from call to call.

Tiles then stay in cache, and no new pages are requested.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import numpy as np

from mha_core import Int8Rows

_own = threading.local()


def scratch(name: str, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """Return an uninitialised array, valid until this thread requests the same name again."""
    size = math.prod(shape) * dtype.itemsize
    buffer = _own.__dict__.get(name)
    if buffer is None or buffer.size < size:
        buffer = _own.__dict__[name] = np.empty(size, dtype=np.uint8)
    return buffer[:size].view(dtype).reshape(shape)


@contextmanager
def scratch_kept_in(box: dict[str, np.ndarray]) -> Iterator[None]:
    """Use the memory in a box as that of this thread, and keep in the box what is added: for threads that Python forgets."""
    own = _own.__dict__
    before = dict(own)
    own.clear()
    own.update(box)
    try:
        yield
    finally:
        box.update(own)
        own.clear()
        own.update(before)


def readable_by_blas(x: np.ndarray | Int8Rows, dtype: Any) -> bool:
    """Return whether a BLAS can read this stack of matrices without a copy."""
    if isinstance(x, Int8Rows):
        return False
    item, (row, column) = x.itemsize, x.strides[-2:]
    return x.dtype == dtype and column == item and row >= item * x.shape[-1] and row % item == 0 and x.flags.aligned


def for_blas(x: Any, dtype: Any, name: str) -> np.ndarray:
    """Return an array itself if a BLAS can read it, else a copy in ``scratch(name, ...)``; always a copy of int8 rows."""
    if readable_by_blas(x, dtype):
        return cast(np.ndarray, x)
    copy = scratch(name, x.shape, dtype)
    if isinstance(x, Int8Rows):
        values, scale = cast(tuple[Any, Any], (x.values, x.scale))
        np.multiply(values, scale, out=copy)
    else:
        np.copyto(copy, x)
    return copy
