"""Attention in NumPy float64, independent of algebra and oracle: a loop over queries, each with the keys that it sees."""

import math

import numpy as np


def attention(query, key, value, *, allowed=None, bias=None, scale=None, softcap=None, sink=None):
    """Return (out, lse, weights); ``allowed`` and ``bias`` are full arrays. Contiguous query heads share a key head."""
    groups = query.shape[-3] // key.shape[-3]
    batch = np.broadcast_shapes(query.shape[:-3], key.shape[:-3], value.shape[:-3])
    query, key, value = (np.broadcast_to(x, (*batch, *x.shape[-3:])).astype(np.float64) for x in (query, key, value))
    rows, width = query.shape[:-1], query.shape[-1]
    out, lse, weights = np.zeros((*rows, value.shape[-1])), np.full(rows, -np.inf), np.zeros((*rows, key.shape[-2]))
    allowed = np.broadcast_to(True if allowed is None else allowed, weights.shape)
    bias = np.broadcast_to(0.0 if bias is None else bias, weights.shape)
    scale = (1 / math.sqrt(width) if width else 1.0) if scale is None else scale
    for at in np.ndindex(rows):
        *element, head, _ = at
        where = (*element, head // groups)
        seen = np.flatnonzero(allowed[at])
        scores = key[where][seen] @ query[at] * scale
        if softcap is not None:
            scores = softcap * np.tanh(scores / softcap)
        scores = scores + bias[at][seen]
        with_sink = scores if sink is None else np.append(scores, np.float64(sink[head]))
        if with_sink.size:
            top = with_sink.max()
            lse[at] = top + np.log(np.exp(with_sink - top).sum())
            weights[at][seen] = np.exp(scores - lse[at])
            out[at] = weights[at][seen] @ value[where][seen]
    return out, lse, weights
