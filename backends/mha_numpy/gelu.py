"""GELU and its gradient in float32 without erf, in tiles that stay in cache."""

from __future__ import annotations

import math
from collections.abc import Set

import numpy as np

from mha_core.plugin import Call

from .activations import GELU
from .scratch import scratch
from .tasks import elementwise

# P(a) = log2(1 - Phi(a)) on 0 <= a <= 9, P(0) = -1 exactly; fitted by linear programming so that a 2^P(a) is within
# 0.8e-8 a. With every step in float32 the error is at most 1.8 unit roundoffs of x (1.73 for the worst of all floats;
# tests/backends/mha_numpy/test_gelu.py).
_P = (
    -2.83496283e-06,
    3.93782583e-05,
    -1.86182747e-04,
    -1.36930893e-04,
    7.06341396e-03,
    -5.2496175e-02,
    -0.459208197,
    -1.15110521,
    -1.0,
)
_FARTHEST = np.float32(9)
_FLAT = 12.0  # beyond, the slope is 0 or 1 in float32


def supports(call: Call) -> str | None:
    """Return why the kernel does not support a call, or None."""
    if call.dtype_name != "float32":
        return f"computes in float32, not {call.dtype}"
    return None if call.option("approximate") == "none" else "does not support approximate='tanh'"


def gelu(x: np.ndarray, *, approximate: str) -> np.ndarray:
    """max(x, 0) - |x| 2^P(|x|)."""
    return elementwise(_tile, x)


def _tile(x: np.ndarray, *, out: np.ndarray) -> None:
    a, p = (scratch(name, x.shape, x.dtype) for name in ("a", "p"))
    np.abs(x, out=a)
    np.minimum(a, _FARTHEST, out=a)
    np.multiply(a, np.float32(_P[0]), out=p)
    for c in _P[1:-1]:
        np.add(p, np.float32(c), out=p)
        np.multiply(p, a, out=p)
    np.add(p, np.float32(_P[-1]), out=p)
    np.exp2(p, out=p)
    np.multiply(p, a, out=p)
    np.maximum(x, np.float32(0), out=out)
    np.subtract(out, p, out=out)


def gelu_vjp(x: np.ndarray, d_out: np.ndarray, *, wanted: Set[str], approximate: str) -> tuple[np.ndarray]:
    """d (Phi(x) + x phi(x)), with Phi(x) = (1 + tanh(x P(x^2))) / 2 and phi the density of the normal distribution."""

    def tile(x: np.ndarray, d: np.ndarray, *, out: np.ndarray) -> None:
        write_slope(x, out)
        np.multiply(out, d, out=out)

    return (elementwise(tile, x, d_out),)


def write_slope(x: np.ndarray, y: np.ndarray, gelu: np.ndarray | None = None) -> None:
    """Write the slope of gelu at x to y, and gelu itself, within a few roundings of x, to ``gelu``, which may be x."""
    a, p, row = (scratch(name, x.shape, x.dtype) for name in ("a", "p", "row"))
    row.fill(_FLAT)  # a scalar takes three times as long
    np.minimum(x, row, out=a)
    np.negative(row, out=row)
    np.maximum(a, row, out=a)
    np.multiply(a, a, out=p)
    np.multiply(p, np.float32(GELU[-1]), out=y)
    for c in GELU[-2:0:-1]:
        np.add(y, np.float32(c), out=y)
        np.multiply(y, p, out=y)
    np.add(y, np.float32(GELU[0]), out=y)
    np.multiply(y, a, out=y)
    np.tanh(y, out=y)
    np.multiply(y, np.float32(0.5), out=y)
    np.add(y, np.float32(0.5), out=y)
    if gelu is not None:
        np.maximum(x, row, out=gelu)  # gelu is 0 below; -inf times 0 would be NaN
        np.multiply(gelu, y, out=gelu)
    np.multiply(p, np.float32(-0.5 / math.log(2)), out=p)
    np.exp2(p, out=p)
    np.multiply(p, np.float32(1 / math.sqrt(2 * math.pi)), out=p)
    np.multiply(p, a, out=p)
    np.add(y, p, out=y)
