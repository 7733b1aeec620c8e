"""Attention in NumPy float64, independent of algebra and oracle: a loop over queries, each with the keys that it sees."""

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
) -> tuple[Floats, Floats, Floats]:
    """Return (out, lse, weights); ``allowed`` and ``bias`` are full arrays. Contiguous query heads share a key head."""
    query, key, value = (np.asarray(x, dtype=np.float64) for x in (query, key, value))
    heads, length, width = query.shape[-3:]
    keys = key.shape[-2]
    groups = heads // key.shape[-3]
    batch = np.broadcast_shapes(query.shape[:-3], key.shape[:-3], value.shape[:-3])
    shape = (*batch, heads, length, keys)
    query = np.broadcast_to(query, (*batch, *query.shape[-3:]))
    key = np.broadcast_to(key, (*batch, *key.shape[-3:]))
    value = np.broadcast_to(value, (*batch, *value.shape[-3:]))
    allowed = np.broadcast_to(True if allowed is None else allowed, shape)
    bias = np.broadcast_to(0.0 if bias is None else np.asarray(bias, dtype=np.float64), shape)
    scale = (1 / math.sqrt(width) if width else 1.0) if scale is None else scale
    out = np.zeros((*batch, heads, length, value.shape[-1]))
    lse = np.full((*batch, heads, length), -np.inf)
    weights = np.zeros(shape)
    for at in np.ndindex(*batch, heads, length):
        *element, head, _ = at
        where = (*element, head // groups)
        seen = np.flatnonzero(allowed[at])
        scores = key[where][seen] @ query[at] * scale
        if softcap is not None:
            scores = softcap * np.tanh(scores / softcap)
        scores = scores + bias[at][seen]
        with_sink = scores if sink is None else np.append(scores, np.float64(sink[head]))
        if with_sink.size == 0:
            continue
        top = with_sink.max()
        lse[at] = top + np.log(np.exp(with_sink - top).sum())
        weights[at][seen] = np.exp(scores - lse[at])
        out[at] = weights[at][seen] @ value[where][seen]
    return out, lse, weights
