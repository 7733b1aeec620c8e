"""Linear maps of few rows of NumPy arrays."""

from __future__ import annotations

from typing import Any

import numpy as np

from mha_numpy.shared import threads_here

from .few_rows import supports, write

__all__ = ["linear", "supports"]


def linear(x: np.ndarray, w: np.ndarray, b: np.ndarray | None) -> np.ndarray:
    """x w + b."""
    out = np.empty((*x.shape[:-1], w.shape[1]), dtype=x.dtype)
    kind = "f" if x.dtype == np.float32 else "H"
    threads = threads_here()
    rows = x.reshape(-1, x.shape[-1])
    write(rows, w, b, out.reshape(-1, w.shape[1]), kind=kind, threads=threads, team=0, at=_at, dense=np.ascontiguousarray)
    return out


def _at(x: np.ndarray) -> tuple[int, Any]:
    return x.__array_interface__["data"][0], x.strides
