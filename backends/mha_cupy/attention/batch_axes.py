"""Any number of batch axes for a kernel that supports only one."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

from mha_core.plugin import AttentionProblem, AttentionState

Fill = Callable[[AttentionProblem, tuple[int, ...], Any, Any], None]
"""Fills out (b, K, G, L, E), and lse (b, K, G, L) or None, for one index of the batch axes before the last."""


def over_batches(p: AttentionProblem, fill: Fill, *, dtype: Any, lse: bool) -> AttentionState:
    """Return the state, filled in one call for each index of the batch axes before the last.

    Query heads are grouped by the key head that they read: (..., K, G, L, E). If the heads of a position are adjacent in the
    query's memory, as a projection returns them, they are adjacent in out too, so that the next projection needs no copy.
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
    for index in product(*map(range, batch[:-1])):
        at = index if batch else (None,)  # without batch axes, add one
        fill(p, index, out[at], None if sums is None else sums[at])
    sums = sums if sums is None else xp.reshape(sums, p.rows_shape)
    return AttentionState(xp.reshape(out, (*batch, heads, rows, out.shape[-1])), sums)
