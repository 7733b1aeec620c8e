"""Gradients of norms over the last axis, in tiles of rows that stay in cache.

With n the normalised x, r = 1 / sqrt(var + eps), d the gradient of the result and g = d * weight:

    dx = r (g - mean g - n mean(g n))        dweight = sum d n        dbias = sum d

and without mean g where x is not centred.
"""

from __future__ import annotations

from collections.abc import Set
from typing import Any

import numpy as np

from .linear import as_rows
from .scratch import scratch
from .threads import run

_TILE = 1 << 15  # elements: four arrays of 128 KB
_TASK = 1 << 17  # elements for which another thread is worth waking

Gradient = np.ndarray | None


def layer_norm_vjp(
    x: np.ndarray, weight: Gradient, bias: Gradient, d_out: np.ndarray, *, wanted: Set[str], eps: float
) -> tuple[Gradient, Gradient, Gradient]:
    """Return the gradients of x, weight and bias, as far as they are wanted."""
    return _gradients(x, weight, d_out, wanted, eps, centred=True)


def rms_norm_vjp(
    x: np.ndarray, weight: Gradient, d_out: np.ndarray, *, wanted: Set[str], eps: float
) -> tuple[Gradient, Gradient]:
    """Return the gradients of x and weight, as far as they are wanted."""
    return _gradients(x, weight, d_out, wanted, eps, centred=False)[:2]


def _gradients(
    x: np.ndarray, weight: Gradient, d_out: np.ndarray, wanted: Set[str], eps: float, *, centred: bool
) -> tuple[Gradient, Gradient, Gradient]:
    rows, d, width = as_rows(x), as_rows(d_out), x.shape[-1]
    size = max(1, _TASK // width)
    starts = range(0, len(rows), size)
    dx = np.empty(x.shape, dtype=x.dtype) if "x" in wanted else None
    to = None if dx is None else dx.reshape(rows.shape)
    sums = np.zeros((2, len(starts), width), dtype=x.dtype)  # each task has its own, added in order below

    def task(at: int) -> None:
        span = slice(at * size, (at + 1) * size)
        with np.errstate(all="ignore"):  # NaN and infinity in, NaN and infinity out
            add_gradients(rows[span], weight, d[span], wanted, eps, centred, None if to is None else to[span], sums[:, at])

    run(task, range(len(starts)))
    with np.errstate(all="ignore"):
        d_weight, d_bias = np.add.reduce(sums, axis=1)
    return dx, d_weight if "weight" in wanted else None, d_bias if "bias" in wanted else None


def add_gradients(
    x: np.ndarray, weight: Gradient, d: np.ndarray, wanted: Set[str], eps: float, centred: bool, dx: Gradient, sums: np.ndarray
) -> None:
    """Write the rows of dx, which may be d itself, and add to the sums for weight and bias."""
    width = x.shape[1]
    mean = np.full((width, 1), 1 / width, dtype=x.dtype)
    num_rows = max(1, _TILE // width)
    for at in range(0, len(x), num_rows):
        tile, d_tile = x[at : at + num_rows], d[at : at + num_rows]
        n, g, product = (scratch(name, tile.shape, x.dtype) for name in ("n", "g", "product"))
        ones = np.ones(len(tile), dtype=x.dtype)
        if "bias" in wanted:
            sums[1] += ones @ d_tile
        if not wanted & {"x", "weight"}:
            continue
        if centred:
            np.subtract(tile, np.matmul(tile, mean), out=n)
        else:
            np.copyto(n, tile)
        r = _inverse_spread(n, eps)
        np.multiply(n, r, out=n)
        np.multiply(d_tile, n, out=product)
        if "weight" in wanted:
            sums[0] += ones @ product
        if dx is None:
            continue
        by_weight: Any = mean if weight is None else weight[:, None] * mean  # mean(g n) = (d n) (weight / width)
        n *= np.matmul(product, by_weight)
        if weight is None:
            np.subtract(d_tile, n, out=g)
        else:
            np.multiply(d_tile, weight, out=g)
            g -= n
        if centred:
            g -= np.matmul(d_tile, by_weight)
        np.multiply(g, r, out=dx[at : at + num_rows])


def _inverse_spread(x: np.ndarray, eps: float) -> np.ndarray:
    """1 / sqrt(mean(x^2) + eps) of each row, (n, 1)."""
    square = np.vecdot(x, x)[:, None]
    square *= 1 / x.shape[1]
    square += eps
    np.sqrt(square, out=square)
    return np.divide(1, square, out=square)
