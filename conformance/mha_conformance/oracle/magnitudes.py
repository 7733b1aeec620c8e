"""Bounds on rounding errors of the pieces, divided by the unit roundoff: sums of absolute terms times numbers of roundings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .attention import Floats
from .reference import rounded_to_int8


def linear_magnitude(x: Floats, w: Floats, b: Floats | None = None) -> Floats:
    """Bound a sum in any order. b may be its first term, and then every partial sum is rounded relative to b too.

    Each of these n roundings is evenly distributed within u |b|, so five standard deviations of their sum are 3 sqrt(n) u |b|.
    """
    root = np.sqrt(w.shape[0])
    size: Floats = np.abs(x) @ np.abs(w) * (root + 2) + (0.0 if b is None else np.abs(b) * (3 * root + 2))
    return size


def linear_int8_magnitude(
    x: Floats, values: Any, scale: Floats, b: Floats | None = None, *, arithmetic: str = "float32"
) -> Floats:
    """Bound the rounding of exact sums of 64 products that are multiplied by two scales, one of them rounded, and added up."""
    terms = np.abs(rounded_to_int8(x, arithmetic)) @ np.abs(values.astype(np.float64)) * scale
    size: Floats = terms * (4 - (-x.shape[-1] // 64))
    return size if b is None else size + np.abs(b)


def norm_magnitude(x: Floats, weight: Floats | None = None, bias: Floats | None = None, *, eps: float = 1e-5) -> Any:
    """Bound rounding of mean and variance by max |x| over the root mean square of the centred row."""
    deviation = np.sqrt(((x - x.mean(axis=-1, keepdims=True)) ** 2).mean(axis=-1, keepdims=True) + eps)
    size = (np.sqrt(x.shape[-1]) + 8) * np.abs(x).max(axis=-1, keepdims=True, initial=0) / deviation
    size = size * (1 + np.abs(x) / deviation)
    return size * (1.0 if weight is None else np.abs(weight)) + (0.0 if bias is None else np.abs(bias))


def rotary_magnitude(x: Floats, cos: Floats, sin: Floats, *, interleaved: bool) -> Floats:
    return 4 * np.nan_to_num(np.abs(x)).max(axis=-1, keepdims=True, initial=0) + 0 * x


def activation_magnitude(x: Floats, *, approximate: str = "none") -> Floats:
    return np.where(np.isfinite(x), 16 * np.abs(x), 1)


MAGNITUDES: dict[str, Callable[..., Any]] = {
    "linear": linear_magnitude,
    "linear_int8": linear_int8_magnitude,
    **dict.fromkeys(("layer_norm", "rms_norm"), norm_magnitude),
    **dict.fromkeys(("gelu", "relu", "silu"), activation_magnitude),
    "rotary": rotary_magnitude,
}
"""The bound of each piece, by its name, from the same arguments."""
