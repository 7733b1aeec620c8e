"""Rotary embedding where torch records no gradient: four passes, each of which writes where the result lies."""

from __future__ import annotations

import torch
from torch import Tensor


def rotary(x: Tensor, cos: Tensor, sin: Tensor, *, interleaved: bool) -> Tensor:
    """(a, b) -> (a cos - b sin, a sin + b cos) for each pair of features; features beyond the pairs pass through."""
    out, half = torch.empty_like(x), cos.shape[-1]
    first, second = (slice(0, 2 * half, 2), slice(1, 2 * half, 2)) if interleaved else (slice(half), slice(half, 2 * half))
    (a, b), (turned_a, turned_b) = ((y[..., first], y[..., second]) for y in (x, out))
    torch.mul(a, cos, out=turned_a).addcmul_(b, sin, value=-1)
    torch.mul(b, cos, out=turned_b).addcmul_(a, sin)
    out[..., 2 * half :] = x[..., 2 * half :]
    return out
