"""Positions: the sinusoids of the original Transformer."""

from __future__ import annotations

import math
from typing import Any

from .arrays import Array, Namespace, compute_dtype


def sinusoidal_positions(xp: Namespace, length: int, d_model: int, *, dtype: Any, device: Any) -> Array:
    """PE(pos, 2i) = sin(pos / 10000^(2i / d_model)), PE(pos, 2i + 1) = cos of the same (Vaswani et al. 2017, section 3.5)."""
    pairs = (d_model + 1) // 2
    wide = compute_dtype(xp, dtype)
    # float32 cannot hold a large angle to the last digit: take it between 0 and 2 pi on the host, where it is float64
    rates = [10000 ** (-2 * i / d_model) for i in range(pairs)]
    angles = [[math.fmod(position * rate, math.tau) for rate in rates] for position in range(length)]
    angle = xp.reshape(xp.asarray(angles, dtype=wide, device=device), (length, pairs))
    both = xp.stack([xp.sin(angle), xp.cos(angle)], axis=-1)
    return xp.astype(xp.reshape(both, (length, 2 * pairs))[:, :d_model], dtype, copy=False)
