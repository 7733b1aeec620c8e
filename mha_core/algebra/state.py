"""The attention state (out, lse), and how states over disjoint keys merge.

States form a commutative monoid with identity (0, -inf). Blockwise attention, split-KV decoding, caches, sinks and
ring attention are all ways to split the keys before merging (Milakov and Gimelshein 2018, section 3.1;
Rabe and Staats 2021, section 2).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce
from typing import NamedTuple

from .arrays import Array, Namespace, device_of


class AttentionState(NamedTuple):
    """Attention over a set of keys: the output, and the log-sum-exp of the scores."""

    out: Array
    """``(..., H, L, E)``, the weighted mean of the values; 0 over no keys."""
    lse: Array
    """``(..., H, L)``, the natural logarithm of the sum of the exponentials of the scores; -inf over no keys."""


def merge(xp: Namespace, a: AttentionState, b: AttentionState) -> AttentionState:
    """lse = log(e^lse_a + e^lse_b), out = e^(lse_a - lse) out_a + e^(lse_b - lse) out_b, in the dtype of lse."""
    m = xp.maximum(a.lse, b.lse)
    empty = m == -math.inf
    m = xp.where(empty, 0, m)
    e_a, e_b = xp.exp(a.lse - m), xp.exp(b.lse - m)
    d = xp.where(empty, 1, e_a + e_b)
    lse = m + xp.log(d)

    def share(state: AttentionState, e: Array) -> Array:
        # by selection: a state over no keys adds exactly nothing
        scaled = (e / d)[..., None] * xp.astype(state.out, lse.dtype, copy=False)
        return xp.where((state.lse == -math.inf)[..., None], 0, scaled)

    return AttentionState(share(a, e_a) + share(b, e_b), xp.where(empty, -math.inf, lse))


def merge_states(xp: Namespace, states: Sequence[AttentionState]) -> AttentionState:
    """Merge states over disjoint sets of keys; the result has the dtypes of the first state and memory of its own."""
    first = states[0]
    if len(states) == 1:
        lse_kind = {"dtype": first.lse.dtype, "device": device_of(first.lse)}
        states = [first, identity(xp, tuple(first.lse.shape), first.out.shape[-1], **lse_kind)]
    out, lse = reduce(lambda a, b: merge(xp, a, b), states)
    return AttentionState(xp.astype(out, first.out.dtype, copy=False), lse)


def concat_queries(xp: Namespace, states: Sequence[AttentionState]) -> AttentionState:
    """Return states of successive queries as one; its lse is None if theirs is."""
    if len(states) == 1:
        return states[0]
    out = xp.concat([state.out for state in states], axis=-2)
    return AttentionState(out, states[0].lse if states[0].lse is None else xp.concat([s.lse for s in states], axis=-1))


def identity(xp: Namespace, rows_shape: tuple[int, ...], value_dim: int, *, dtype: object, device: object) -> AttentionState:
    """Return the state over no keys; ``rows_shape`` is (..., H, L)."""
    out = xp.zeros((*rows_shape, value_dim), dtype=dtype, device=device)
    return AttentionState(out, xp.full(rows_shape, -math.inf, dtype=dtype, device=device))
