"""GELU in float32 without erf, in tiles that stay in cache."""

from __future__ import annotations

import numpy as np

from mha_core.plugin import Call

from .scratch import scratch
from .threads import run

# P(a) = log2(1 - Phi(a)) on 0 <= a <= 9, P(0) = -1 exactly; fitted by linear programming so that a 2^P(a) is within
# 0.8e-8 a. With every step in float32 the error is at most 1.8 unit roundoffs of x (1.73 for the worst of all floats;
# tests/test_numpy_gelu.py).
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
_TILE = 1 << 16  # elements: x, y and two arrays in scratch, of 256 KB each; with shorter loops two threads lose time
_TASK = 1 << 18  # elements for which another thread is worth waking


def supports(call: Call) -> str | None:
    """Return why the kernel does not support a call, or None."""
    if str(call.dtype) != "float32":
        return f"computes in float32, not {call.dtype}"
    return None if call.option("approximate") == "none" else "does not support approximate='tanh'"


def gelu(x: np.ndarray, *, approximate: str) -> np.ndarray:
    """max(x, 0) - |x| 2^P(|x|)."""
    flat = x.reshape(-1)
    y = np.empty_like(flat)

    def task(at: int) -> None:
        for start in range(at, min(at + _TASK, flat.size), _TILE):
            tile, out = flat[start : start + _TILE], y[start : start + _TILE]
            _tile(tile, out, *(scratch(name, tile.shape, tile.dtype) for name in ("a", "p")))

    run(task, range(0, flat.size, _TASK))
    return y.reshape(x.shape)


def _tile(x: np.ndarray, y: np.ndarray, a: np.ndarray, p: np.ndarray) -> None:
    np.abs(x, out=a)
    np.minimum(a, _FARTHEST, out=a)
    np.multiply(a, np.float32(_P[0]), out=p)
    for c in _P[1:-1]:
        np.add(p, np.float32(c), out=p)
        np.multiply(p, a, out=p)
    np.add(p, np.float32(_P[-1]), out=p)
    np.exp2(p, out=p)
    np.multiply(p, a, out=p)
    np.maximum(x, np.float32(0), out=y)
    np.subtract(y, p, out=y)
