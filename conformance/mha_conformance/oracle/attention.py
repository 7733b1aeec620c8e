"""Attention in NumPy float64 over whole arrays, independent of the algebra. Complex arrays give complex-step derivatives."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

Floats = np.ndarray[Any, np.dtype[np.float64]]


def attention(
    query: Any,
    key: Any,
    value: Any,
    *,
    allowed: Any = None,
    bias: Any = None,
    scale: float | None = None,
    softcap: float | None = None,
    sink: Any = None,
    kept_weights: Any = None,
    score: Any = None,
) -> tuple[Floats, Floats, Floats]:
    """Return (out, lse, weights); ``allowed`` and ``bias`` are full arrays. Contiguous query heads share a key head.

    kept_weights: what the weights are multiplied by, for dropout; the returned weights are those before it.
    score: function that takes the place of the scores, after softcap.
    """
    query, key, value = (np.asarray(x, dtype=complex if np.iscomplexobj(x) else float) for x in (query, key, value))
    groups = query.shape[-3] // key.shape[-3]
    key, value = (np.repeat(x, groups, axis=-3) for x in (key, value))
    scale = (1 / math.sqrt(query.shape[-1]) if query.shape[-1] else 1.0) if scale is None else scale
    s = query @ np.swapaxes(key, -1, -2) * scale
    s = s if softcap is None else softcap * np.tanh(s / softcap)
    s = s if score is None else score(s)
    s = s if bias is None else s + bias
    batch = np.broadcast_shapes(query.shape[:-2], key.shape[:-2], value.shape[:-2])
    s = np.broadcast_to(s if allowed is None else np.where(allowed, s, -np.inf), (*batch, *s.shape[-2:]))
    extra = (
        np.full((*batch, s.shape[-2], 1), -np.inf)
        if sink is None
        else np.broadcast_to(sink[:, None, None], (*batch, s.shape[-2], 1))
    )
    top = np.maximum(s.real.max(axis=-1, keepdims=True, initial=-np.inf), extra.real)
    base = np.where(top == -np.inf, 0.0, top)
    e = np.exp(s - base)
    total = e.sum(axis=-1, keepdims=True) + np.exp(extra - base)
    with np.errstate(divide="ignore"):
        lse = base + np.log(total)
    weights = e / np.where(total == 0, 1.0, total)
    return (weights if kept_weights is None else weights * kept_weights) @ value, lse[..., 0], weights
