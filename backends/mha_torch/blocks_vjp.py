"""Gradients of attention by blocks of scores, in torch's own operations: every option, on any device.

The formulas, in the names of ``mha_core.algebra.attention_vjp``:

    w = e^(s - lse)        ds = w (do . v - delta)        dq = scale ds c k        dk = scale ds c q        dv = w do

Blocks are computed in place, and products of float32 by oneDNN where it is faster than MKL. A function of scores sees all heads
at once, as its arguments say which they are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Set
from itertools import product
from typing import Any

import torch
from torch import Tensor

from mha_core.plugin import (
    AttentionGradients,
    AttentionProblem,
    AttentionState,
    Call,
    ScoreSum,
    goes_by_sequence,
    gradients_by_sequence,
    heads_together,
    score_sum,
)

from .onednn import fastest_product, is_twice_as_fast, unfit
from .parts import ScorePart, is_turned, parts
from .rows import GradientInputs, gradients_of, rows_of, sink_gradient
from .shapes import mask_on_four_axes
from .tiles import exp_in_place

_LARGEST = 512  # queries, and keys, in a block
# scores in a block; on the CPU those of one head with 512 queries and keys, so that the four arrays of a block fit into a cache
_PAIRS = {"cpu": 1 << 18}
_PAIRS_ELSEWHERE = 1 << 23
_PAIRS_OF_FUNCTION = 1 << 20  # scores of all heads for which a function is called at a time


def supports(call: Call) -> str | None:
    if 0 in (size for _, shape in call.shapes for size in shape):
        return "does not support empty axes"
    if "d_bias" in call.features and "bias_term" in call.features:
        return "has no rule for the gradient of a bias of the caller's class"
    if {"d_bias", "relative_bias"} <= call.features and call.option("query_offset") is None:
        return "does not support the gradient of a relative bias with an offset for each batch element"
    return None


def supports_onednn(call: Call) -> str | None:
    """Return why the same blocks are not preferred to torch's fused kernel, which uses MKL."""
    computed = torch.float32 if call.dtype in (torch.float16, torch.bfloat16) else call.dtype
    if reason := unfit(computed, call.device):
        return reason
    if not is_twice_as_fast():
        return "is not known to have products twice as fast as MKL's on this processor"
    query, key = call.shape("query"), call.shape("key")
    assert query is not None and key is not None
    if min(query[-2], key[-2]) < 256:
        return "needs at least 256 queries and keys"
    low, high = call.option("band")
    if low is not None and high is not None and high - low < 2 * _LARGEST:
        return f"needs a band of at least {2 * _LARGEST} keys"
    return supports(call)


def attention_vjp(p: AttentionProblem, state: AttentionState, d_out: Any, d_lse: Any, wanted: Set[str]) -> AttentionGradients:
    """Return the wanted gradients, in the dtypes of the arrays; half precision is computed in float32."""
    if goes_by_sequence(p):
        return gradients_by_sequence(p, state, d_out, d_lse, wanted, attention_vjp)
    x = rows_of(p, state, d_out, d_lse)
    of_options: dict[str, Any] = {"sink": sink_gradient(p, x)} if "sink" in wanted else {}
    if wanted <= {"sink"}:
        return gradients_of(p, wanted, (None, None, None), **of_options)
    turned = is_turned(p)
    if turned:
        x = x._replace(key=x.key.flip(-2), value=x.value.flip(-2))
    function = _Function(p, "bias" in wanted) if p.bias is not None and not p.bias.is_added else None
    of_bias = score_sum(p, last_key_first=turned) if "bias" in wanted and function is None else None
    of_arrays = _Blocks(p, x, turned, of_bias, function).gradients(wanted)
    if turned:
        of_arrays = [d if d is None or at == 0 else d.flip(-2) for at, d in enumerate(of_arrays)]
    if of_bias is not None:
        of_options["bias"] = of_bias.whole()
    if function is not None and function.sums is not None:
        of_options["bias"] = function.sums.whole(p.device)
    return gradients_of(p, wanted, of_arrays, **of_options)


class _Function:
    """A function of scores, and the sums of the gradients of its arrays if these are wanted."""

    def __init__(self, p: AttentionProblem, of_arrays: bool) -> None:
        self.p, self.sums = p, p.bias.sum(p.xp) if of_arrays and p.bias is not None else None

    def pullback(self, scores: Tensor, part: ScorePart) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        """Return what it makes of a block of scores, (B, H, l, s), and a function from the gradient of that to theirs."""
        p, bias = self.p, self.p.bias
        assert bias is not None
        start = p.structure.keys.start
        grid = p.grid(part.rows, range(start + part.cols.start, start + part.cols.stop))
        given: Any = scores.view(grid.shape)
        result: Any
        result, pull = bias.pullback(given, grid, of_arrays=self.sums is not None)

        def pulled(d: Any) -> Any:
            of_scores: Any
            of_scores, of_arrays = pull(d.view(grid.shape))
            if self.sums is not None:
                self.sums.add(grid, of_arrays)
            return of_scores.reshape(d.shape)

        return result.reshape(scores.shape), pulled


class _Blocks:
    """The sum of the gradients of blocks."""

    def __init__(
        self, p: AttentionProblem, x: GradientInputs, turned: bool, of_bias: ScoreSum | None, function: _Function | None
    ) -> None:
        self.p, self.x, self.turned, self.of_bias, self.function = p, x, turned, of_bias, function
        self.factor = p.scale if p.softcap is None else p.scale / p.softcap
        self.query, self.delta = x.query * self.factor, x.delta[..., None]
        self.lse = x.lse[..., None]
        self.batches = list(product(*map(range, p.batch_shape or (1,))))

    def gradients(self, wanted: Set[str]) -> list[Tensor | None]:
        x, p = self.x, self.p
        self.d_query = torch.zeros_like(x.query) if "query" in wanted else None
        self.d_key = torch.zeros_like(x.key) if "key" in wanted else None
        self.d_value = torch.zeros_like(x.value) if "value" in wanted else None
        only_value = wanted <= {"value", "sink"}
        largest = max(64, _LARGEST // math.isqrt(p.num_groups))
        (count, heads), most = x.key.shape[:2], _PAIRS.get(p.device.type, _PAIRS_ELSEWHERE)
        if self.function is not None:
            largest = max(64, math.isqrt(_PAIRS_OF_FUNCTION // x.query.shape[:2].numel()))
            p = p.with_arrays(p.query, p.key, p.value, bias=None)
        for part in parts(p, turned=self.turned, largest=largest):
            mask = None if part.mask is None else mask_on_four_axes(part.mask, p.batch_shape)
            size = max(1, min(heads, most // (len(part.rows) * len(part.cols) * p.num_groups)))
            for elements, kv_heads in heads_together(count, heads, size if self.function is None else count * heads):
                self._add(part, mask, elements, kv_heads, only_value=only_value)
        if self.d_query is not None:
            self.d_query *= p.scale
        if self.d_key is not None and p.softcap is not None:
            self.d_key *= p.softcap  # of the factor that queries have
        return [self.d_query, self.d_key, self.d_value]

    def _add(self, part: ScorePart, mask: Tensor | None, batch: slice, kv: slice, *, only_value: bool) -> None:
        """Add the gradients of one block: some queries, keys and heads of some elements of the batch."""
        groups, softcap = self.p.num_groups, self.p.softcap
        rows, cols = part.slices(self.x.key.shape[-2], turned=self.turned)
        heads, count = slice(kv.start * groups, kv.stop * groups), kv.stop - kv.start

        def grouped(y: Tensor) -> Tensor:
            """(B, H, L, d) -> (heads of keys of all elements, queries of all their heads, d)."""
            return y[batch, heads, rows].reshape(-1, groups * len(part.rows), y.shape[-1])

        def by_key_head(y: Tensor) -> Tensor:
            """The same with an axis for elements, (b, heads of keys, ..., d)."""
            return y.reshape(-1, count, *y.shape[1:])

        q, do, lse, delta = (grouped(y) for y in (self.query, self.x.d_out, self.lse, self.delta))
        k, v = (y[batch, kv, cols].flatten(0, 1) for y in (self.x.key, self.x.value))

        def by_head(y: Tensor) -> Tensor:
            return y.view(-1, count * groups, len(part.rows), len(part.cols))

        s = fastest_product(q, k.mT)
        t: Tensor | None = None
        if softcap is not None:
            t = s.tanh_()
            s = t * softcap
        pull: Callable[[Tensor], Tensor] | None = None
        if self.function is not None:
            changed, pull = self.function.pullback(by_head(s), part)
            s = changed.reshape(s.shape).sub(lse)  # not in place: the pullback may need what the function returned
            if mask is not None:
                by_head(s).masked_fill_(_of_heads(mask, batch, heads) == -math.inf, -math.inf)
        else:
            if mask is not None:
                by_head(s).add_(_of_heads(mask, batch, heads))
            s.sub_(lse)
        w = exp_in_place(s)
        if self.d_value is not None:
            self.d_value[batch, kv, cols] += by_key_head(fastest_product(do.mT, w).mT)
        if only_value:
            return
        ds = fastest_product(do, v.mT).sub_(delta).mul_(w)
        if self.of_bias is not None:
            at = (*self.batches[batch.start], range(heads.start, heads.stop), part.rows, part.cols)
            self.of_bias.add(at, by_head(ds)[0])
        if pull is not None:
            ds = pull(by_head(ds)).reshape(ds.shape)
        if t is not None:  # the slope of softcap, 1 - tanh^2
            ds = ds.addcmul_(t.mul_(t), ds, value=-1)
        if self.d_query is not None:
            d_rows = fastest_product(ds, k)
            self.d_query[batch, heads, rows] += d_rows.view(-1, count * groups, len(part.rows), d_rows.shape[-1])
        if self.d_key is not None:
            self.d_key[batch, kv, cols] += by_key_head(fastest_product(q.mT, ds).mT)


def _of_heads(mask: Tensor, batch: slice, heads: slice) -> Any:
    """(B, H, l, s), where each axis may be 1, -> (b, h, l, s)."""
    of_batch = mask[batch] if len(mask) > 1 else mask
    return of_batch[:, heads] if of_batch.shape[1] > 1 else of_batch
