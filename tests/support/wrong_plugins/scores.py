"""Kernels whose scores are wrong, in the wrong order, or of too little precision."""

import numpy as np

from .dense import Dense, attend, bias, mask, scores, softcap
from .dense import right as right

scale_off = Dense(scores=lambda p, query, key: 1.01 * scores(p, query, key))
last_key_dropped = Dense(attend=lambda p, s, value: attend(p, s[..., :-1], value[..., :-1, :]))
first_key_of_the_second_tile_dropped = Dense(attend=lambda p, s, value: attend(p, *_without_key_64(p, s, value)))
softcap_after_mask = Dense(order=(mask, softcap, bias))  # c tanh(-inf / c) is -c: a masked key is seen
softcap_after_bias = Dense(order=(bias, softcap, mask))


def _without_key_64(p, s, value):
    """Drop the first key of the second tile: shorter problems do not show it."""
    return np.delete(s, slice(64, 65), axis=-1), np.delete(value, slice(64, 65), axis=-2)


def _rounded_query(p, query, key):
    """Scale the query in its own dtype."""
    return (query * p.scale).astype(p.query.dtype).astype(query.dtype) @ np.swapaxes(key, -1, -2)


query_rounded = Dense(scores=_rounded_query)


def _half_scores(p, query, key):
    """Sum scores in the dtype of the inputs: 300 * 300 * 64 overflows float16."""
    with np.errstate(over="ignore"):
        s = np.matmul(query.astype(p.query.dtype), np.swapaxes(key, -1, -2).astype(p.query.dtype))
    return s.astype(query.dtype) * p.scale


half_scores = Dense(scores=_half_scores)


rounded_values = Dense(attend=lambda p, s, value: attend(p, s, value.astype(np.float16).astype(value.dtype)))


def _split_wrongly(p, s, value):
    """Merge the outputs of two halves of the keys by their greatest scores in place of their sums."""
    half = s.shape[-1] // 2
    if half == 0 or p.sink is not None:
        return attend(p, s, value)
    parts = [attend(p, s[..., part], value[..., part, :]) for part in (slice(half), slice(half, None))]
    lse = np.logaddexp(*(part[1] for part in parts))
    tops = [s[..., part].max(axis=-1, keepdims=True) for part in (slice(half), slice(half, None))]
    shift = np.maximum(*tops)
    shift = np.where(np.isfinite(shift), shift, 0)
    weights = [np.exp(top - shift) for top in tops]
    total = sum(weights)
    return sum(w * out for w, (out, _) in zip(weights, parts, strict=True)) / np.where(total == 0, 1, total), lse


merged_by_the_maximum = Dense(attend=_split_wrongly)
