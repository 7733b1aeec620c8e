"""Positions: the sinusoids of the original Transformer, and rotary embeddings."""

from __future__ import annotations

import math
from collections.abc import Set
from typing import Any

from .arrays import Array, Namespace, compute_dtype, sum_to


def sinusoidal_positions(xp: Namespace, length: int, d_model: int, *, dtype: Any, device: Any) -> Array:
    """PE(pos, 2i) = sin(pos / 10000^(2i / d_model)), PE(pos, 2i + 1) = cos of the same (Vaswani et al. 2017, section 3.5)."""
    rates = [10000 ** (-2 * (i // 2) / d_model) for i in range(d_model)]
    waves = [math.cos if i % 2 else math.sin for i in range(d_model)]
    rows = [[wave(position * rate) for wave, rate in zip(waves, rates, strict=True)] for position in range(length)]
    return _table(xp, rows, (length, d_model), dtype, device)


def rotary_tables(xp: Namespace, length: int, dim: int, base: float, *, dtype: Any, device: Any) -> tuple[Array, Array]:
    """cos and sin of pos * base^(-2i / dim), each (length, dim / 2) (Su et al. 2021, section 3.2.2)."""
    rates = [base ** (-2 * i / dim) for i in range(dim // 2)]
    cos, sin = (
        _table(xp, [[wave(pos * rate) for rate in rates] for pos in range(length)], (length, dim // 2), dtype, device)
        for wave in (math.cos, math.sin)
    )
    return cos, sin


def _table(xp: Namespace, rows: list[list[float]], shape: tuple[int, int], dtype: Any, device: Any) -> Array:
    # computed on the host in float64, whatever the device supports: the same bits on every backend, at any position
    table = xp.asarray(rows, dtype=compute_dtype(xp, dtype), device=device)
    return xp.astype(xp.reshape(table, shape), dtype, copy=False)


def rotary(xp: Namespace, x: Array, cos: Array, sin: Array, *, interleaved: bool) -> Array:
    """(a, b) -> (a cos - b sin, a sin + b cos) for each pair of features; features beyond the pairs pass through.

    Pairs are neighbours (x_0, x_1), (x_2, x_3), ... if ``interleaved``, else a feature and its match in the second half.
    """
    wide = compute_dtype(xp, x.dtype)
    cos, sin = (xp.astype(table, wide, copy=False) for table in (cos, sin))
    a, b = _pairs(xp, x, cos.shape[-1], interleaved)
    return _joined(xp, a * cos - b * sin, a * sin + b * cos, x, interleaved)


def rotary_vjp(
    xp: Namespace, x: Array, cos: Array, sin: Array, d: Array, *, wanted: Set[str], interleaved: bool
) -> tuple[Array | None, Array | None, Array | None]:
    """The gradient of x is d, rotated back; those of the tables are sums over the pairs that they rotate."""
    half = cos.shape[-1]
    dx = rotary(xp, d, cos, -sin, interleaved=interleaved) if "x" in wanted else None
    (a, b), (da, db) = (_pairs(xp, y, half, interleaved) for y in (x, d))
    d_cos = sum_to(xp, a * da + b * db, cos.shape) if "cos" in wanted else None
    d_sin = sum_to(xp, a * db - b * da, sin.shape) if "sin" in wanted else None
    d_cos, d_sin = (None if g is None else xp.astype(g, cos.dtype, copy=False) for g in (d_cos, d_sin))
    return dx, d_cos, d_sin


def _pairs(xp: Namespace, x: Array, half: int, interleaved: bool) -> tuple[Array, Array]:
    """Return the first and the second feature of each of ``half`` pairs, in the compute dtype."""
    turned = xp.astype(x[..., : 2 * half], compute_dtype(xp, x.dtype), copy=False)
    return (turned[..., ::2], turned[..., 1::2]) if interleaved else (turned[..., :half], turned[..., half:])


def _joined(xp: Namespace, a: Array, b: Array, x: Array, interleaved: bool) -> Array:
    """Return pairs as features again, followed by those of ``x`` that are in no pair."""
    if interleaved:
        turned = xp.stack([a, b], axis=-1)
        turned = xp.reshape(turned, (*turned.shape[:-2], 2 * a.shape[-1]))
    else:
        turned = xp.concat([a, b], axis=-1)
    turned = xp.astype(turned, x.dtype, copy=False)
    unpaired = x[..., 2 * a.shape[-1] :]
    return xp.concat([turned, unpaired], axis=-1) if unpaired.shape[-1] else turned
