"""Kernels that are wrong for rows that see no key, or whose log-sum-exp is wrong."""

import numpy as np

from .dense import Dense, attend, changed, widen
from .dense import right as right


def _for_an_empty_row(value):
    """Return a kernel that gives ``value(p)`` for a row that sees none of several keys."""

    def change(p, out, lse):
        empty = np.isneginf(lse) & (p.key.shape[-2] > 0)
        return np.where(empty[..., None], value(p), out).astype(out.dtype), lse

    return changed(change)


# as a softmax over equal finite numbers does, and as 0 / 0 does
mean_for_an_empty_row = _for_an_empty_row(lambda p: widen(p)[2].mean(axis=-2, keepdims=True) if p.key.shape[-2] else 0)
nan_for_an_empty_row = _for_an_empty_row(lambda p: np.nan)
lowest_lse_for_an_empty_row = changed(lambda p, out, lse: (out, np.where(np.isneginf(lse), np.finfo(lse.dtype).min, lse)))
lse_of_base_2 = changed(lambda p, out, lse: (out, (lse / np.log(2)).astype(lse.dtype)))
lse_rounded = changed(lambda p, out, lse: (out, lse.astype(np.float16).astype(lse.dtype)))
lse_in_half_precision = changed(lambda p, out, lse: (out, lse.astype(p.query.dtype)))


@changed
def sink_of_an_empty_row_forgotten(p, out, lse):
    """Return early if there are no keys, before the sink is added."""
    return out, lse if p.sink is None or p.key.shape[-2] else np.full_like(lse, -np.inf)


@changed
def values_leak_into_an_empty_row(p, out, lse):
    """Multiply values by weights of 0: 0 times NaN is NaN."""
    with np.errstate(invalid="ignore"):
        leak = (0 * widen(p)[2]).sum(axis=-2, keepdims=True)
    return (out + leak).astype(out.dtype), lse


def _sink_in_lse_only(p, s, value):
    """Count the sink in the log-sum-exp, but not in the sum that the output is divided by."""
    out, lse = attend(p, s, value)
    if p.sink is None:
        return out, lse
    share = 1 - np.exp(p.sink.astype(s.dtype)[:, None] - lse)
    return np.where(share[..., None] > 0, out / np.where(share > 0, share, 1)[..., None], 0), lse


sink_in_lse_only = Dense(attend=_sink_in_lse_only)
