"""Positions: the sinusoids of the original Transformer."""

from __future__ import annotations

import math
from typing import Any

from .arrays import Array, Namespace, compute_dtype


def sinusoidal_positions(xp: Namespace, length: int, d_model: int, *, dtype: Any, device: Any) -> Array:
    """PE(pos, 2i) = sin(pos / 10000^(2i / d_model)), PE(pos, 2i + 1) = cos of the same (Vaswani et al. 2017, section 3.5)."""
    # on the host, where it is float64 whatever the device can do: the same bits on every backend, however far out
    rates = [10000 ** (-2 * (i // 2) / d_model) for i in range(d_model)]
    waves = [math.cos if i % 2 else math.sin for i in range(d_model)]
    rows = [[wave(position * rate) for wave, rate in zip(waves, rates, strict=True)] for position in range(length)]
    table = xp.asarray(rows, dtype=compute_dtype(xp, dtype), device=device)
    return xp.astype(xp.reshape(table, (length, d_model)), dtype, copy=False)
