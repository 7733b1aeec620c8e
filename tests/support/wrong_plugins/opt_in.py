"""Attention kernels that only ``use_kernel`` chooses: they are judged by name."""

from dataclasses import replace

import numpy as np

from mha_core.plugin import AttentionState

from .dense import Dense, changed, mask, weigh
from .dense import right as right


def _through(p, s, value):
    """Multiply the values of rows that see no key by 0, so that NaN in a value reaches them."""
    weights, lse = weigh(p, s)
    return weights @ value, lse


reaches_masked_rows = Dense(attend=_through)


def stands_for_a_mask(p):
    """Mask with -1e30; rows that see no key are right, but -1e30 is greater than some scores."""
    state = right(p)
    if p.mask is None:
        return state
    lower = replace(right, order=(*right.order[:2], lambda p, s: np.where(np.isneginf(mask(p, s)), np.float32(-1e30), s)))
    empty = np.isneginf(state.lse) if p.sink is None else np.zeros_like(state.lse, dtype=bool)
    return AttentionState(np.where(empty[..., None], 0, lower(p).out), state.lse)


out_only = changed(lambda p, out, lse: (out, None))


def out_only_with_nan(p):
    return AttentionState(reaches_masked_rows(p).out, None)


without_features = other_features = refusing = right
_calls = []


def races(p):
    """Round the result while another call is being computed."""
    _calls.append(1)
    try:
        out, lse = right(p)
        for _ in range(5):
            right(p)
        return AttentionState(out.astype(np.float16).astype(out.dtype) if len(_calls) > 1 else out, lse)
    finally:
        _calls.pop()
