"""Norms over the last axis, in tiles of rows that stay in cache."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from mha_core.plugin import Call

from .threads import run

_TILE = 1 << 16  # elements
_TASK = 1 << 18  # elements for which another thread is worth waking


def supports(call: Call) -> str | None:
    """Return why kernels that compute rows in float32 and float64 do not support a call, or None."""
    if call.dtype_name not in ("float32", "float64"):
        return f"computes in float32 or float64, not {call.dtype}"
    return "does not support empty axes" if 0 in (size for _, shape in call.shapes for size in shape) else None


def layer_norm(x: np.ndarray, weight: np.ndarray | None, bias: np.ndarray | None, *, eps: float) -> np.ndarray:
    """(x - mean) / sqrt(var + eps) * weight + bias."""
    return by_rows(x, lambda rows, to: normed(rows, weight, bias, eps, to))


def rms_norm(x: np.ndarray, weight: np.ndarray | None, *, eps: float) -> np.ndarray:
    """x / sqrt(mean(x^2) + eps) * weight."""
    return by_rows(x, lambda rows, to: normed(rows, weight, None, eps, to, centred=False))


def by_rows(x: np.ndarray, function: Callable[[np.ndarray, np.ndarray], None]) -> np.ndarray:
    """Return what ``function(rows, to)`` writes, called on all cores for parts of x as rows (n, d)."""
    y = np.empty(x.shape, dtype=x.dtype)
    rows, to = x.reshape(-1, x.shape[-1]), y.reshape(-1, x.shape[-1])
    size = max(1, _TASK // x.shape[-1])
    run(lambda at: function(rows[at : at + size], to[at : at + size]), range(0, len(rows), size))
    return y


def normed(
    x: np.ndarray, weight: np.ndarray | None, bias: np.ndarray | None, eps: float, out: np.ndarray, *, centred: bool = True
) -> None:
    """Write the norm of each row of x, (n, d), to ``out``, which may be x itself.

    ``centred``: (x - mean) / sqrt(var + eps) * weight + bias (Ba, Kiros and Hinton 2016, equation 4); otherwise
    x / sqrt(mean(x^2) + eps) * weight (Zhang and Sennrich 2019, equation 4).
    """
    width = x.shape[1]
    rows = max(1, _TILE // width)
    ones = np.ones((width, 1), dtype=x.dtype)
    with np.errstate(all="ignore"):
        for at in range(0, len(x), rows):
            tile, y = x[at : at + rows], out[at : at + rows]
            if centred:
                mean = np.matmul(tile, ones)
                mean /= width  # 1 / width is not a float32: as the matrix's entries it would move every mean to one side
                np.subtract(tile, mean, out=y)
                tile = y
            square = np.vecdot(tile, tile)[:, None]
            square *= 1 / width
            square += eps
            np.sqrt(square, out=square)
            np.divide(1, square, out=square)
            np.multiply(tile, square, out=y)
            if weight is not None:
                y *= weight
            if bias is not None:
                y += bias
