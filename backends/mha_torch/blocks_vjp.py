"""Gradients of attention by blocks of scores, in torch's own operations: every option, on any device.

The formulas, in the names of ``mha_core.algebra.attention_vjp``:

    w = e^(s - lse)        ds = w (do . v - delta)        dq = scale ds c k        dk = scale ds c q        dv = w do

Blocks are computed in place, and products of float32 by oneDNN where it is faster than MKL.
"""

from __future__ import annotations

import math
from collections.abc import Set
from itertools import product
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

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

_LARGEST = 512  # queries, and keys, in a block
# scores in a block; on the CPU those of one head with 512 queries and keys, so that the four arrays of a block fit into a cache
_PAIRS = {"cpu": 1 << 18}
_PAIRS_ELSEWHERE = 1 << 23


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
    of_options = {"sink": sink_gradient(p, x)} if "sink" in wanted else {}
    if wanted <= {"sink"}:
        return gradients_of(p, wanted, (None, None, None), **of_options)
    turned = is_turned(p)
    if turned:
        x = x._replace(key=x.key.flip(-2), value=x.value.flip(-2))
    of_bias = score_sum(p, last_key_first=turned) if "bias" in wanted else None
    of_arrays = _Blocks(p, x, turned, of_bias).gradients(wanted)
    if turned:
        of_arrays = [d if d is None or at == 0 else d.flip(-2) for at, d in enumerate(of_arrays)]
    if of_bias is not None:
        of_options["bias"] = of_bias.whole()
    return gradients_of(p, wanted, of_arrays, **of_options)


class _Blocks:
    """The sum of the gradients of blocks."""

    def __init__(self, p: AttentionProblem, x: GradientInputs, turned: bool, of_bias: ScoreSum | None) -> None:
        self.p, self.x, self.turned, self.of_bias = p, x, turned, of_bias
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
        for part in parts(p, largest=largest):
            mask = None if part.mask is None else mask_on_four_axes(part.mask, p.batch_shape)
            size = max(1, min(heads, most // (len(part.rows) * len(part.cols) * p.num_groups)))
            for element, kv_heads in heads_together(count, heads, size):
                self._add(part, mask, element.start, kv_heads, only_value=only_value)
        if self.d_query is not None:
            self.d_query *= p.scale
        if self.d_key is not None and p.softcap is not None:
            self.d_key *= p.softcap  # of the factor that queries have
        return [self.d_query, self.d_key, self.d_value]

    def _add(self, part: ScorePart, mask: Tensor | None, batch: int, kv: slice, *, only_value: bool) -> None:
        """Add the gradients of one block: some queries, keys and heads of one element of the batch."""
        groups, softcap = self.p.num_groups, self.p.softcap
        rows, cols = part.slices(self.x.key.shape[-2], turned=self.turned)
        heads, count = slice(kv.start * groups, kv.stop * groups), kv.stop - kv.start

        def grouped(y: Tensor) -> Tensor:
            """(B, H, L, d) -> (heads of keys, queries of all their heads, d)."""
            return y[batch, heads, rows].reshape(count, -1, y.shape[-1])

        q, do, lse, delta = (grouped(y) for y in (self.query, self.x.d_out, self.lse, self.delta))
        k, v = (y[batch, kv, cols] for y in (self.x.key, self.x.value))

        def by_head(y: Tensor) -> Tensor:
            return y.view(count * groups, len(part.rows), len(part.cols))

        s = fastest_product(q, k.mT)
        t: Tensor | None = None
        if softcap is not None:
            t = s.tanh_()
            s = t * softcap
        if mask is not None:
            by_head(s).add_(_of_heads(mask, batch, heads))
        w = _exp(s.sub_(lse))
        if self.d_value is not None:
            self.d_value[batch, kv, cols] += fastest_product(do.mT, w).mT
        if only_value:
            return
        ds = fastest_product(do, v.mT).sub_(delta).mul_(w)
        if self.of_bias is not None:
            self.of_bias.add((*self.batches[batch], range(heads.start, heads.stop), part.rows, part.cols), by_head(ds))
        if t is not None:  # the slope of softcap, 1 - tanh^2
            ds = ds.addcmul_(t.mul_(t), ds, value=-1)
        if self.d_query is not None:
            d_rows = fastest_product(ds, k)
            self.d_query[batch, heads, rows] += d_rows.view(count * groups, len(part.rows), -1)
        if self.d_key is not None:
            self.d_key[batch, kv, cols] += fastest_product(q.mT, ds).mT


def _exp(x: Tensor) -> Tensor:
    """Return e^x, computed in place, with 0 for subnormal numbers: MKL takes up to 30 times as long for them and for -inf."""
    smallest = torch.finfo(x.dtype).tiny
    lowest = math.log(smallest) + 0.01
    return F.threshold(x.clamp_(min=lowest).exp_(), smallest * 1.02, 0.0, inplace=True)


def _of_heads(mask: Tensor, batch: int, heads: slice) -> Any:
    """(B, H, l, s), where each axis may be 1, -> (heads, l, s)."""
    of_batch = mask[batch if len(mask) > 1 else 0]
    return of_batch[heads] if len(of_batch) > 1 else of_batch
