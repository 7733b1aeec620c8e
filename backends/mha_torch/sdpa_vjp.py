"""Gradients of attention by the backward pass of torch's fused kernel on the CPU, from the state.

The kernel computes weights from lse, which may be that of all keys and a sink while it is given some keys only. So a problem
may be cut into parts, whose gradients are added. d_lse enters by delta = d_out . out - d_lse alone: one more feature, 1 in
d_out, -d_lse in out and 0 in all else, gives the kernel that delta.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from typing import Any

import torch
from torch import Tensor

from mha_core.plugin import AttentionGradients, AttentionProblem, AttentionState, Call, goes_by_sequence, gradients_by_sequence

from .parts import ScorePart, is_turned, parts
from .rows import ARRAYS, GradientInputs, gradients_of, rows_of, sink_gradient
from .shapes import contiguous_rows, mask_on_four_axes, padded

_backward: Any = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


def supports(call: Call) -> str | None:
    if 0 in (size for _, shape in call.shapes for size in shape):
        return "does not support empty axes"
    return None if call.device.type == "cpu" else f"runs on the CPU, not on {call.device.type}"


def attention_vjp(p: AttentionProblem, state: AttentionState, d_out: Any, d_lse: Any, wanted: Set[str]) -> AttentionGradients:
    """Return the wanted gradients, in the dtypes of the arrays; half precision is computed in float32."""
    if goes_by_sequence(p):
        return gradients_by_sequence(p, state, d_out, d_lse, wanted, attention_vjp)
    x = rows_of(p, state, d_out, d_lse)
    of_options = {"sink": sink_gradient(p, x)} if "sink" in wanted else {}
    if wanted.isdisjoint(ARRAYS):
        return AttentionGradients(**of_options)
    widths = (x.query.shape[-1], x.query.shape[-1], x.value.shape[-1])
    of_arrays = _gradients(p, _of_one_width(x))
    return gradients_of(p, wanted, (d[..., :width] for d, width in zip(of_arrays, widths, strict=True)), **of_options)


def _of_one_width(x: GradientInputs) -> GradientInputs:
    """Return the arrays with equal numbers of features, d_lse among them."""
    out, d_out = x.out, x.d_out
    if x.d_lse is not None:
        out = torch.cat([out, -x.d_lse[..., None]], dim=-1)
        d_out = torch.cat([d_out, torch.ones_like(d_out[..., :1])], dim=-1)
    width = max(x.query.shape[-1], out.shape[-1])
    query, key, value, out, d_out = (contiguous_rows(padded(y, width)) for y in (x.query, x.key, x.value, out, d_out))
    return GradientInputs(query, key, value, out, x.lse, d_out, None)


def _gradients(p: AttentionProblem, x: GradientInputs) -> Sequence[Tensor]:
    """Return those of query, key and value."""
    if _is_flagged(p):
        return _sum_of_parts(p, x, _flagged(p))
    if not is_turned(p):
        return _sum_of_parts(p, x, parts(p, turned=False))
    x = x._replace(key=x.key.flip(-2), value=x.value.flip(-2))
    d_query, *of_keys = _sum_of_parts(p, x, parts(p, turned=True), turned=True)
    return [d_query, *(d.flip(-2) for d in of_keys)]


def _sum_of_parts(
    p: AttentionProblem, x: GradientInputs, cut: Iterator[ScorePart], *, turned: bool = False
) -> Sequence[Tensor]:
    sums: list[Tensor] = []
    num_keys = x.key.shape[-2]
    for part in cut:
        rows, cols = part.slices(num_keys, turned=turned)
        mask = None if part.mask is None else mask_on_four_axes(part.mask, p.batch_shape)
        q, out, d_out = (y[..., rows, :] for y in (x.query, x.out, x.d_out))
        k, v = (y[..., cols, :] for y in (x.key, x.value))
        of_part = _backward(d_out, q, k, v, out, x.lse[..., rows], 0.0, part.causal, attn_mask=mask, scale=p.scale)
        if q.shape == x.query.shape and k.shape == x.key.shape:
            return of_part
        sums = sums or [torch.zeros_like(y) for y in (x.query, x.key, x.value)]
        for total, d, at in zip(sums, of_part, (rows, cols, cols), strict=True):
            total[..., at, :] += d
    return sums or [torch.zeros_like(y) for y in (x.query, x.key, x.value)]


def _is_flagged(p: AttentionProblem) -> bool:
    """Return whether parts need no mask: no key is excluded, or only those after a query."""
    return p.bias is None and p.structure.features <= ({"causal"} if p.scale > 0 else set())


def _flagged(p: AttentionProblem) -> Iterator[ScorePart]:
    """Yield parts without masks: the keys that every query sees, and a part that is causal and aligned at the start."""
    rows, cols, high = range(p.query.shape[-2]), range(len(p.structure.keys)), p.structure.band[1]
    if high is None:
        yield ScorePart(rows, cols)
        return
    if high > 0:
        yield ScorePart(rows, cols[:high])
    yield ScorePart(rows[max(0, -high) :], cols[max(0, high) :], causal=True)
