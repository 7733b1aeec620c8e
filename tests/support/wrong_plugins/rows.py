"""Kernels that are wrong for rows that see no key, or whose log-sum-exp is wrong."""

import numpy as np

from mha_core.plugin import AttentionState

from .dense import Dense, attend, widen
from .dense import right as right


def _for_an_empty_row(p, value):
    """Return ``value`` for a row that sees none of several keys."""
    out, lse = right(p)
    empty = np.isneginf(lse) & (p.key.shape[-2] > 0)
    return AttentionState(np.where(empty[..., None], value, out).astype(out.dtype), lse)


def mean_for_an_empty_row(p):
    """Return the mean of the values, as a softmax over equal finite numbers does."""
    return _for_an_empty_row(p, widen(p)[2].mean(axis=-2, keepdims=True) if p.key.shape[-2] else 0)


def nan_for_an_empty_row(p):
    """Return NaN, as 0 / 0 does."""
    return _for_an_empty_row(p, np.nan)


def lowest_lse_for_an_empty_row(p):
    """Return the lowest number of the dtype in place of minus infinity."""
    out, lse = right(p)
    return AttentionState(out, np.where(np.isneginf(lse), np.finfo(lse.dtype).min, lse))


def sink_of_an_empty_row_forgotten(p):
    """Return early if there are no keys, before the sink is added."""
    out, lse = right(p)
    if p.sink is None or p.key.shape[-2]:
        return AttentionState(out, lse)
    return AttentionState(out, np.full_like(lse, -np.inf))


def values_leak_into_an_empty_row(p):
    """Multiply values by weights of 0: 0 times NaN is NaN."""
    out, lse = right(p)
    value = widen(p)[2]
    with np.errstate(invalid="ignore"):
        leak = (0 * value).sum(axis=-2, keepdims=True)
    return AttentionState((out + leak).astype(out.dtype), lse)


def lse_of_base_2(p):
    out, lse = right(p)
    return AttentionState(out, (lse / np.log(2)).astype(lse.dtype))


def lse_rounded(p):
    """Round the lse to float16, then return it in the right dtype."""
    out, lse = right(p)
    return AttentionState(out, lse.astype(np.float16).astype(lse.dtype))


def lse_in_half_precision(p):
    """Return the lse in the dtype of the query."""
    out, lse = right(p)
    return AttentionState(out, lse.astype(p.query.dtype))


def _sink_in_lse_only(p, s, value):
    """Count the sink in the log-sum-exp, but not in the sum that the output is divided by."""
    out, lse = attend(p, s, value)
    if p.sink is None:
        return out, lse
    share = 1 - np.exp(p.sink.astype(s.dtype)[:, None] - lse)
    return np.where(share[..., None] > 0, out / np.where(share > 0, share, 1)[..., None], 0), lse


sink_in_lse_only = Dense(attend=_sink_in_lse_only)
