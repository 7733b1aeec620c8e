"""Rotary embedding in tiles of positions, which are rotated while they are in cache."""

from __future__ import annotations

from collections.abc import Set
from typing import Any

import numpy as np

from mha_core.plugin import Call

from .norms import supports
from .scratch import scratch
from .tasks import TILE
from .threads import run

_TASK = 4  # tiles for which another thread is worth waking


def rotary(x: np.ndarray, cos: np.ndarray, sin: np.ndarray, *, interleaved: bool) -> np.ndarray:
    """(a, b) -> (a cos - b sin, a sin + b cos) for each pair of features; features beyond the pairs pass through."""
    return _rotated(x, cos, sin, interleaved, back=False)


def rotary_vjp(
    x: np.ndarray, cos: np.ndarray, sin: np.ndarray, d_out: np.ndarray, *, wanted: Set[str], interleaved: bool
) -> tuple[np.ndarray | None, None, None]:
    """Return the gradient of x, which is d_out rotated back."""
    return _rotated(d_out, cos, sin, interleaved, back=True) if "x" in wanted else None, None, None


def supports_vjp(call: Call) -> str | None:
    """Return why the gradients are not computed; None if they are."""
    tables = sorted(call.option("wanted") - {"x"})
    return f"has no gradient of {' and '.join(tables)}" if tables else supports(call)


def _rotated(x: np.ndarray, cos: np.ndarray, sin: np.ndarray, interleaved: bool, *, back: bool) -> np.ndarray:
    """Rotate by the angles of the tables, or ``back`` by the opposite ones; the result has the order of axes of x."""
    out = np.empty_like(x, subok=False)
    half, length = cos.shape[-1], x.shape[-2]
    cos, sin = (np.broadcast_to(table, np.broadcast_shapes(table.shape, (length, half))) for table in (cos, sin))
    first, second = (slice(0, 2 * half, 2), slice(1, 2 * half, 2)) if interleaved else (slice(half), slice(half, 2 * half))
    plus, minus = (np.subtract, np.add) if back else (np.add, np.subtract)

    def tile(rows: slice) -> None:
        c, s = cos[..., rows, :], sin[..., rows, :]
        from_, to = x[..., rows, :], out[..., rows, :]
        (a, b), (turned_a, turned_b) = ((y[..., first], y[..., second]) for y in (from_, to))
        product = scratch("rotary", a.shape, x.dtype)
        minus(np.multiply(a, c, out=turned_a), np.multiply(b, s, out=product), out=turned_a)
        plus(np.multiply(b, c, out=turned_b), np.multiply(a, s, out=product), out=turned_b)
        to[..., 2 * half :] = from_[..., 2 * half :]

    size = max(1, TILE * length // x.size)  # positions

    def task(at: int) -> None:
        with np.errstate(all="ignore"):  # NaN and infinity in, NaN and infinity out
            for start in range(at, min(at + _TASK * size, length), size):
                tile(slice(start, min(start + size, length)))

    starts: Any = range(0, length, _TASK * size)
    if len(starts) > 1:
        run(task, starts)
    else:
        for at in starts:
            task(at)
    return out
