"""Kernels that assume a shape."""

from dataclasses import replace

import numpy as np

from .dense import Dense, attend, changed, scores
from .dense import right as right


def _tiled(p):
    """Let query head i read key head i modulo the number of key heads, in place of the key head of its group."""
    query, key, value = (x.astype(p.compute_dtype) for x in (p.query, p.key, p.value))
    return query, *(np.concatenate([x] * p.num_groups, axis=-3) for x in (key, value))


heads_tiled = Dense(widen=_tiled)


def first_of_the_batch(p):
    """Use the first query for the whole batch if the batch shares its keys."""
    if p.query.ndim == 4 and p.key.shape[0] == 1 < p.query.shape[0] and p.value.shape[0] == 1 and p.sink is None:
        p = replace(p, query=np.broadcast_to(p.query[:1], p.query.shape))
    return right(p)


@changed
def values_as_wide_as_keys(p, out, lse):
    """Compute only the first head_dim columns of the output."""
    out[..., p.query.shape[-1] :] = 0
    return out, lse


def _own_scale(p, query, key):
    """Divide by sqrt(D) first, where D may be 0."""
    root = np.sqrt(np.asarray(p.query.shape[-1], dtype=query.dtype))
    with np.errstate(invalid="ignore"):
        s = query @ np.swapaxes(key, -1, -2) / root
    return s * (p.scale * root)


no_width = Dense(scores=_own_scale)


def _no_keys(p, s, value):
    """Return NaN if there is no key at all."""
    out, lse = attend(p, s, value)
    return (out, lse) if s.shape[-1] or p.sink is not None else (out + np.nan, lse)


no_keys = Dense(attend=_no_keys)


def no_queries(p):
    """Raise if there are no queries."""
    if p.query.shape[-2] == 0:
        raise IndexError("list index out of range")
    return right(p)


def _padded(p, query, key):
    """Read keys in pairs; the last of an odd number of keys has a score of 0."""
    s = scores(p, query, key)
    if s.shape[-1] % 2 and s.shape[-1] > 1:
        s[..., -1] = 0
    return s


keys_in_pairs = Dense(scores=_padded)
