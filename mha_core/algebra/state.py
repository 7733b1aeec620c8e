"""The attention state (out, lse), and the one rule by which states over disjoint keys merge.

States form a commutative monoid with identity (0, -inf). Blockwise attention, split-KV decoding, caches, sinks and
ring attention are all choices of how to split the keys before merging (Milakov and Gimelshein 2018, section 3.1;
Rabe and Staats 2021, section 2).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce
from typing import NamedTuple

from .arrays import Array, Namespace


class AttentionState(NamedTuple):
    """Attention over a set of keys.

    out: ``(..., H, L, E)``, the weighted mean of the values; 0 over no keys.
    lse: ``(..., H, L)``, the natural logarithm of the sum of the exponentials of the scores; -inf over no keys.
    """

    out: Array
    lse: Array


def merge(xp: Namespace, a: AttentionState, b: AttentionState) -> AttentionState:
    """lse = log(e^lse_a + e^lse_b), out = e^(lse_a - lse) out_a + e^(lse_b - lse) out_b, in the dtype of lse."""
    top = xp.maximum(a.lse, b.lse)
    shift = xp.where(top == -math.inf, 0, top)
    weight_a, weight_b = xp.exp(a.lse - shift), xp.exp(b.lse - shift)
    total = weight_a + weight_b
    empty = top == -math.inf
    lse = shift + xp.log(xp.where(empty, 1, total))

    def share(state: AttentionState, weight: Array) -> Array:
        # by selection: a state over no keys adds exactly nothing
        scaled = (weight / xp.where(empty, 1, total))[..., None] * xp.astype(state.out, lse.dtype, copy=False)
        return xp.where((state.lse == -math.inf)[..., None], 0, scaled)

    return AttentionState(share(a, weight_a) + share(b, weight_b), xp.where(empty, -math.inf, lse))


def merge_states(xp: Namespace, states: Sequence[AttentionState]) -> AttentionState:
    """Merge states over disjoint sets of keys; the result has the dtypes of the first."""
    out, lse = reduce(lambda a, b: merge(xp, a, b), states)
    return AttentionState(xp.astype(out, states[0].out.dtype, copy=False), lse)


def identity(xp: Namespace, rows_shape: tuple[int, ...], value_dim: int, *, dtype: object, device: object) -> AttentionState:
    """The state over no keys: ``rows_shape`` is (..., H, L)."""
    out = xp.zeros((*rows_shape, value_dim), dtype=dtype, device=device)
    return AttentionState(out, xp.full(rows_shape, -math.inf, dtype=dtype, device=device))
