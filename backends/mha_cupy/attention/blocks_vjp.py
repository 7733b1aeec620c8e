"""Gradients of attention by the kernel ``blocks``: cuBLAS products with one kernel between them, one block of scores at a time.

In the names of ``mha_core.algebra.attention_vjp``, for each block of queries and keys:

    w = e^(s - lse)        ds = w (do . v - delta)        dq = scale ds c k        dk = scale ds c q        dv = w do

The scores and do . v are products in float32 (float64 for float64); one kernel (cuda/softmax.cu) makes w and ds of them, in the
dtype of the arrays; three products add to the gradients, which are float32 until all blocks are done. Blocks follow one another
in a fixed order, so the sums do too. The host never waits for the device.
"""

from __future__ import annotations

from collections.abc import Set
from typing import Any

import numpy

from mha_core.algebra.attention_vjp import RowTerms
from mha_core.plugin import (
    AttentionGradients,
    AttentionProblem,
    AttentionState,
    Call,
    ScoreSum,
    goes_by_sequence,
    gradients_by_sequence,
    score_sum,
)

from .. import launch, products
from . import blocks, partition
from .blocks import slice_of, softmax_launch, weight_factor
from .mask_and_bias import MaskAndBias, along, with_batch
from .partition import ScoreBlock
from .rows import gradients_of, over_batches, rows_of

_THREADS = 256  # of a row, at most


def supports(call: Call) -> str | None:
    if "d_bias" in call.features and "bias_term" in call.features:
        return "has no rule for the gradient of a bias of the caller's class"
    if {"d_bias", "relative_bias"} <= call.features and call.option("query_offset") is None:
        return "does not support the gradient of a relative bias with an offset for each batch element"
    return blocks.supports(call)


def attention_vjp(p: AttentionProblem, state: AttentionState, d_out: Any, d_lse: Any, wanted: Set[str]) -> AttentionGradients:
    """Return the wanted gradients, in the dtypes of the arrays; sums are float32 or float64."""
    if goes_by_sequence(p):
        return gradients_by_sequence(p, state, d_out, d_lse, wanted, attention_vjp)
    rows = rows_of(p, state, d_out, d_lse)
    of_bias = score_sum(p) if "bias" in wanted else None
    sums = {name: _zeros(p, getattr(p, name)) for name in ("query", "key", "value") if name in wanted}
    for index, of_batch, to in over_batches(p, rows, sums) if wanted - {"sink"} else ():
        _Blocks(p, index, of_batch, to, of_bias).add()
    return gradients_of(p, sums, rows, wanted, bias=None if of_bias is None else of_bias.whole())


def _zeros(p: AttentionProblem, x: Any) -> Any:
    return p.xp.zeros((*p.batch_shape, *x.shape[-3:]), dtype=p.compute_dtype, device=p.device)


class _Blocks:
    """The blocks of the problem of one index of the batch axes before the last, added to sums in place."""

    def __init__(
        self, p: AttentionProblem, index: tuple[int, ...], rows: RowTerms, sums: dict[str, Any], of_bias: ScoreSum | None
    ) -> None:
        xp = p.xp
        self.p, self.index, self.rows, self.of_bias = p, index, rows, of_bias
        self.modifiers = MaskAndBias(p, index)

        def by_head(x: Any) -> Any:
            """(b, H, l, d) -> (b, K, G, l, d)."""
            return xp.reshape(x, (x.shape[0], -1, p.num_groups, *x.shape[2:]))

        self.query, self.key, self.value = (with_batch(x, index) for x in (p.query, p.key, p.value))
        self.query, self.d_out = by_head(self.query), by_head(rows.d_out)
        self.d_query = by_head(sums["query"]) if "query" in sums else None
        self.d_key, self.d_value = sums.get("key"), sums.get("value")

    def add(self) -> None:
        modifiers = self.modifiers
        batch, heads, groups, num_rows = self.d_out.shape[:-1]
        num_cols = self.key.shape[-2]
        for block in partition.blocks(
            *(batch, heads, groups, num_rows, num_cols, modifiers.band),
            copies=batch * heads * groups if modifiers.is_computed else 0,
            scores=partition.scores_of_block(batch * heads * groups * num_rows * num_cols) // 2,  # twice the arrays
        ):
            for cols in block.cols:
                if len(cols):
                    self._add(block, cols)

    def _add(self, block: ScoreBlock, cols: range) -> None:
        """Add one block: two products, the kernel between them, and up to three products."""
        p, xp = self.p, self.p.xp
        query, d_out = (along(along(along(x, 0, block.batch), 1, block.heads), 3, block.rows) for x in (self.query, self.d_out))
        key, value = (along(along(along(x, 0, block.batch), 1, block.heads), 2, cols) for x in (self.key, self.value))
        shape = (*d_out.shape[:-1], -(-len(cols) // 8) * 8)  # rows then begin at multiples of 16 bytes
        scores, d_weights = (xp.empty(shape, dtype=p.compute_dtype, device=p.device) for _ in range(2))
        count, place = len(cols), (slice_of(block.batch), slice_of(block.heads))
        products.product(query, xp.matrix_transpose(key[:, :, None]), scores[..., :count], p.scale)
        products.product(d_out, xp.matrix_transpose(value[:, :, None]), d_weights[..., :count])
        is_wide, separate = p.query.dtype == p.compute_dtype, self.of_bias is not None and p.softcap is not None
        weights = scores if is_wide else xp.empty(shape, dtype=p.query.dtype, device=p.device)
        d_scores = d_weights if is_wide and not separate else xp.empty(shape, dtype=p.query.dtype, device=p.device)
        d_bias = d_weights if self.of_bias is not None and d_scores is not d_weights else None
        lse, delta = (
            x[place[0], block.heads.start * p.num_groups :, block.rows.start :] for x in (self.rows.lse, self.rows.delta)
        )
        of_rows = (lse, delta, *map(numpy.int64, products.elements(self.rows.lse)[:2]))
        arrays = scores, weights, (scores, d_weights, weights, d_scores, d_bias, *of_rows)
        threads = min(_THREADS, partition.threads_of_row(count)[0])
        launch.run(softmax_launch("softmax_vjp", self.modifiers, block, cols, arrays, threads, 1))
        if self.of_bias is not None:
            of_scores = xp.reshape(d_weights, (shape[0], -1, *shape[3:]))[..., :count]
            heads = range(block.heads.start * p.num_groups, block.heads.stop * p.num_groups)
            self.of_bias.add((*self.index, block.batch, heads, block.rows, cols), of_scores)
        weights, d_scores = weights[..., :count], d_scores[..., :count]
        if self.d_query is not None:
            of_rows = self.d_query[(*place, slice(None), slice_of(block.rows))]
            products.product(d_scores, key[:, :, None], of_rows, p.scale, add=True)
        for total, left, right, factor in (
            (self.d_key, d_scores, query, p.scale),
            (self.d_value, weights, d_out, 1 / weight_factor(weights)),
        ):
            if total is not None:
                of_keys = total[(*place, slice_of(cols))]
                products.product(xp.matrix_transpose(_stacked(xp, left)), _stacked(xp, right), of_keys, factor, add=True)


def _stacked(xp: Any, x: Any) -> Any:
    """(b, K, G, l, d) -> (b, K, G l, d): the rows of all query heads of a key head."""
    return xp.reshape(x, (*x.shape[:2], -1, x.shape[-1]))
