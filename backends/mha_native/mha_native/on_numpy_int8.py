"""Linear maps of int8 weights on NumPy arrays."""

from __future__ import annotations

from typing import Any

import numpy as np

from mha_core import Int8Weight
from mha_numpy.shared import Chunks, threads_here

from .int8 import supports, write

__all__ = ["linear", "linear_int8", "supports"]

_of_floats = Chunks().linear


def linear_int8(x: np.ndarray, w: Int8Weight, b: np.ndarray | None) -> np.ndarray:
    """x w + b: each row of x is rounded to int8."""
    out = np.empty((*x.shape[:-1], w.shape[1]), dtype=x.dtype)
    rows, to = x.reshape(-1, x.shape[-1]), out.reshape(-1, w.shape[1])
    rows = rows if rows.strides[-1] == rows.itemsize else np.ascontiguousarray(rows)
    write(rows, w, b, to, dense=np.ascontiguousarray, threads=threads_here())
    return out


def linear(x: np.ndarray, w: Any, b: np.ndarray | None, out: np.ndarray) -> None:
    """Write x w + b to ``out``, with weights in int8 or not, on one thread. Rows of x and ``out`` have no gaps."""
    if isinstance(w, Int8Weight):
        write(x, w, b, out, dense=np.ascontiguousarray)
    else:
        _of_floats(x, w, b, out)
