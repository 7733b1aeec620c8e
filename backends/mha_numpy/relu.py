"""ReLU and its gradient without branches, which take ten times as long where signs are random."""

from __future__ import annotations

from collections.abc import Set
from typing import Any

import numpy as np

from mha_core.plugin import Call

from .scratch import scratch
from .tasks import elementwise

_INTEGERS: dict[str, np.dtype[Any]] = {"f": np.dtype(np.int32), "d": np.dtype(np.int64)}
"""Integers as wide as a dtype, by its character."""


def supports(call: Call) -> str | None:
    """Return why kernels that compute elements in float32 and float64 do not support a call, or None."""
    return None if call.dtype_name in ("float32", "float64") else f"computes in float32 or float64, not {call.dtype}"


def relu(x: np.ndarray) -> np.ndarray:
    """max(x, 0); NaN stays NaN."""

    def tile(x: np.ndarray, *, out: np.ndarray) -> None:
        np.maximum(x, np.zeros(len(x), dtype=x.dtype), out=out)  # a scalar takes three times as long

    return elementwise(tile, x)


def relu_vjp(x: np.ndarray, d_out: np.ndarray, *, wanted: Set[str]) -> tuple[np.ndarray]:
    """d where x > 0, and 0 at 0; NaN stays NaN."""
    return (elementwise(pass_where_positive, x, np.ascontiguousarray(d_out)),)


def pass_where_positive(x: np.ndarray, d: np.ndarray, *, out: np.ndarray) -> None:
    """Write d where x > 0, NaN where x is NaN, and 0 elsewhere to ``out``, which may be d."""
    integers = _INTEGERS[x.dtype.char]
    above = np.greater(x, 0, out=scratch("above", x.shape, np.dtype(bool)))
    bits = np.negative(above.view(np.int8), out=scratch("bits", x.shape, integers), dtype=integers)  # all bits, or none
    np.bitwise_and(d.view(integers), bits, out=out.view(integers))
    unordered = np.isnan(x, out=above)
    if unordered.any():
        np.copyto(out, x, where=unordered)
