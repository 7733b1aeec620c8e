"""What a kernel with one batch axis is asked of a problem with any number of them."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product as every
from typing import Any

from mha_core.plugin import AttentionProblem, AttentionState

Fill = Callable[[AttentionProblem, tuple[int, ...], Any, Any], None]
"""Of a problem, a place of its batch axes before the last, out (b, K, G, L, E) and lse (b, K, G, L) or None, to be filled."""


def over_batches(p: AttentionProblem, fill: Fill, *, dtype: Any, lse: bool) -> AttentionState:
    """Query heads stand beside the key head that they read: (..., K, G, L, E).

    Where the heads of a query lie side by side, as a projection leaves them, those of out do too: the next one needs no copy.
    """
    xp, (*batch, heads, rows), strides = p.xp, p.rows_shape, p.query.strides  # type: ignore[attr-defined]
    by_head = (heads // p.num_groups, p.num_groups)
    grouped = (*batch, *by_head, rows)
    if strides[-2] > strides[-3]:
        out = xp.empty((*batch, rows, *by_head, p.value.shape[-1]), dtype=dtype, device=p.device)
        out = xp.moveaxis(out, -4, -2)
    else:
        out = xp.empty((*grouped, p.value.shape[-1]), dtype=dtype, device=p.device)
    sums: Any = xp.empty(grouped, dtype=p.compute_dtype, device=p.device) if lse else None
    for index in every(*map(range, batch[:-1])):
        at = index if batch else (None,)  # without a batch, a batch of one
        fill(p, index, out[at], None if sums is None else sums[at])
    sums = sums if sums is None else xp.reshape(sums, p.rows_shape)
    return AttentionState(xp.reshape(out, (*batch, heads, rows, out.shape[-1])), sums)
