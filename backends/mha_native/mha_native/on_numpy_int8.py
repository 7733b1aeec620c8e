"""Linear maps of int8 weights on NumPy arrays."""

from __future__ import annotations

from typing import Any

import numpy as np

from mha_core import Int8Weight
from mha_numpy.shared import Chunks, inside_a_task, num_threads

from .int8 import packed, supports
from .level import native

__all__ = ["linear", "linear_int8", "supports"]

_of_floats = Chunks().linear


def linear_int8(x: np.ndarray, w: Int8Weight, b: np.ndarray | None) -> np.ndarray:
    """x w + b: each row of x is rounded to int8."""
    out = np.empty((*x.shape[:-1], w.shape[1]), dtype=x.dtype)
    _write(_dense(x.reshape(-1, x.shape[-1])), w, b, out.reshape(-1, w.shape[1]), 1 if inside_a_task() else num_threads())
    return out


def linear(x: np.ndarray, w: Any, b: np.ndarray | None, out: np.ndarray) -> None:
    """Write x w + b to ``out``, with weights in int8 or not, on one thread. Rows of x and ``out`` have no gaps."""
    if isinstance(w, Int8Weight):
        _write(x, w, b, out, 1)
    else:
        _of_floats(x, w, b, out)


def _write(x: np.ndarray, w: Int8Weight, b: np.ndarray | None, out: np.ndarray, threads: int) -> None:
    native.linear_int8(packed(w, np.ascontiguousarray), threads, 0, x, None if b is None else _dense(b), out)


def _dense(x: np.ndarray) -> np.ndarray:
    return x if x.strides[-1] == x.itemsize else np.ascontiguousarray(x)
