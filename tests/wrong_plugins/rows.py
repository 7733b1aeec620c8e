"""Kernels that answer wrongly for a row that sees no key, or give a log-sum-exp that is none."""

import numpy as np

from mha_core.plugin import AttentionState

from .dense import Dense, attend, widen
from .dense import right as right


def mean_for_an_empty_row(p):
    """What a softmax over equal stand-ins gives: as if the row saw everything."""
    out, lse = right(p)
    if p.key.shape[-2] == 0:
        return AttentionState(out, lse)
    mean = widen(p)[2].mean(axis=-2, keepdims=True)
    return AttentionState(np.where(np.isneginf(lse)[..., None], mean, out).astype(out.dtype), lse)


def nan_for_an_empty_row(p):
    """What 0 / 0 gives."""
    out, lse = right(p)
    if p.key.shape[-2] == 0:
        return AttentionState(out, lse)
    return AttentionState(np.where(np.isneginf(lse)[..., None], np.nan, out).astype(out.dtype), lse)


def lowest_lse_for_an_empty_row(p):
    """The lowest number of the dtype for minus infinity."""
    out, lse = right(p)
    return AttentionState(out, np.where(np.isneginf(lse), np.finfo(lse.dtype).min, lse))


def sink_of_an_empty_row_forgotten(p):
    """A row without keys returns early, before the sink."""
    out, lse = right(p)
    if p.sink is None or p.key.shape[-2]:
        return AttentionState(out, lse)
    return AttentionState(out, np.full_like(lse, -np.inf))


def values_leak_into_an_empty_row(p):
    """Its weights are 0, but 0 times NaN is not."""
    out, lse = right(p)
    value = widen(p)[2]
    with np.errstate(invalid="ignore"):
        leak = (0 * value).sum(axis=-2, keepdims=True)
    return AttentionState((out + leak).astype(out.dtype), lse)


def lse_of_base_2(p):
    out, lse = right(p)
    return AttentionState(out, (lse / np.log(2)).astype(lse.dtype))


def lse_rounded(p):
    """Kept in float16 on the way, in the right dtype at the end."""
    out, lse = right(p)
    return AttentionState(out, lse.astype(np.float16).astype(lse.dtype))


def lse_in_half_precision(p):
    """In the dtype of the query."""
    out, lse = right(p)
    return AttentionState(out, lse.astype(p.query.dtype))


def _sink_for_show(p, s, value):
    """In the log-sum-exp, but the output was divided before."""
    out, lse = attend(p, s, value)
    if p.sink is None:
        return out, lse
    share = 1 - np.exp(p.sink.astype(s.dtype)[:, None] - lse)
    return np.where(share[..., None] > 0, out / np.where(share > 0, share, 1)[..., None], 0), lse


sink_in_lse_only = Dense(attend=_sink_for_show)
