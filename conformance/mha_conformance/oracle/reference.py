"""Pieces of layers in NumPy float64, independent of the algebra."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .attention import Floats

_erf = np.frompyfunc(math.erf, 1, 1)


def linear(x: Floats, w: Floats, b: Floats | None = None) -> Floats:
    y: Floats = x @ w
    return y if b is None else y + b


def linear_int8(x: Floats, values: Any, scale: Floats, b: Floats | None = None, *, arithmetic: str = "float32") -> Floats:
    """Round x to integers in ``arithmetic``, step by step as ``quantize_weight`` says; the rest is exact."""
    y: Floats = rounded_to_int8(x, arithmetic) @ values.astype(np.float64) * scale
    return y if b is None else y + b


def rounded_to_int8(x: Floats, arithmetic: str = "float32", *, group: int = 64) -> Floats:
    """Return the multiples of the scales of x (..., n) that are nearest to it; NaN for a group that is not finite."""
    rows, top = x.astype(arithmetic), tops_of_groups(x.astype(arithmetic), group)
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        integers = np.rint(rows * (np.asarray(127, arithmetic) / top)).astype(np.float64)
    step = (top / np.asarray(127, arithmetic)).astype(np.float64)
    is_zero, finite = top < 2.0**-120, np.isfinite(top)
    return np.where(finite, np.where(is_zero | ~finite, 0, integers), np.nan) * np.where(finite, step, np.nan)


def tops_of_groups(x: Floats, group: int = 64) -> Floats:
    """Return the largest absolute value among each ``group`` neighbouring features of a row, at each of them."""
    starts = np.arange(0, x.shape[-1], group)
    tops: Floats = np.maximum.reduceat(np.abs(x), starts, axis=-1)
    return np.repeat(tops, np.diff([*starts, x.shape[-1]]), axis=-1)


def layer_norm(x: Floats, weight: Floats | None = None, bias: Floats | None = None, *, eps: float = 1e-5) -> Floats:
    centred = x - x.mean(axis=-1, keepdims=True)
    y: Floats = centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + eps)
    return (y if weight is None else y * weight) + (0.0 if bias is None else bias)


def rms_norm(x: Floats, weight: Floats | None = None, *, eps: float = 1e-5) -> Floats:
    y: Floats = x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + eps)
    return y if weight is None else y * weight


def gelu(x: Floats, *, approximate: str = "none") -> Floats:
    x = np.where(x == -np.inf, 0, x)  # the limit
    if approximate == "tanh":
        return x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2
    return x * (1 + np.asarray(_erf(x / math.sqrt(2)), dtype=np.float64)) / 2


def relu(x: Floats) -> Floats:
    return np.maximum(x, 0.0)


def silu(x: Floats) -> Floats:
    x = np.where(x == -np.inf, 0, x)  # the limit
    with np.errstate(over="ignore"):  # e^-x is inf, and the quotient 0
        return x / (1 + np.exp(-x))


def rotary(x: Floats, cos: Floats, sin: Floats, *, interleaved: bool) -> Floats:
    pairs = 2 * cos.shape[-1]
    y, first, second = x.copy(), slice(0, pairs, 2), slice(1, pairs, 2)
    if not interleaved:
        first, second = slice(0, pairs // 2), slice(pairs // 2, pairs)
    y[..., first] = x[..., first] * cos - x[..., second] * sin
    y[..., second] = x[..., second] * cos + x[..., first] * sin
    return y
