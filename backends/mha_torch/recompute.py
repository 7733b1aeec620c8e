"""Attention that records its own gradient, whose backward pass computes the weights again (Dao et al. 2022, section 3.1).

torch would record every block of scores. This keeps query, key, value, out and lse, and calls ``attention_vjp`` with them. The
gradients are a function with a gradient too: that of the algebra, which torch records when it is asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from mha_core.plugin import AttentionProblem, AttentionState, Call, attend, attend_vjp

from . import sdpa
from .tensors import ProblemOutline

_SERVED = frozenset({"gradient", "traced", "causal", "value_dim", "broadcast"})
"""Features of calls for which torch's own gradient of its fused kernel needs no mask."""


def supports(call: Call) -> str | None:
    if "gradient" not in call.features:
        return "is for calls that record a gradient"
    if "vmap" not in call.features and sdpa.supports(call) is None and (_is_flagged(call) or call.device.type != "cpu"):
        return "would record what the kernel 'sdpa' does"
    return None


def _is_flagged(call: Call) -> bool:
    high, key = call.option("band")[1], call.shape("key")
    assert key is not None
    return call.features <= _SERVED and (high in (None, 0) or high >= key[-2] - 1)


def attention(p: AttentionProblem) -> AttentionState:
    outline = ProblemOutline(p)
    tensors, outline.tensors = outline.tensors, []
    out, lse = _Attention.apply(outline, *tensors)  # type: ignore[no-untyped-call]
    return AttentionState(out, lse)


class _Attention(torch.autograd.Function):
    """The state of a problem."""

    generate_vmap_rule = True

    @staticmethod
    def forward(outline: ProblemOutline, *tensors: Tensor) -> Any:
        return tuple(attend(outline.problem(tensors)))

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.outline, *tensors = inputs
        ctx.save_for_backward(*tensors, *output)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, d_out: Tensor | None, d_lse: Tensor | None) -> Any:
        saved, outline = ctx.saved_tensors, ctx.outline
        wanted = [at for at in outline.names if ctx.needs_input_grad[at + 1]]
        result: list[Tensor | None] = [None] * (len(saved) - 1)
        if wanted and (d_out is not None or d_lse is not None):
            towards = [x for x in (d_out, d_lse) if x is not None]
            call = _Call(outline, wanted, d_out is not None, d_lse is not None)
            for at, gradient in zip(wanted, _Gradients.apply(call, *saved, *towards), strict=True):  # type: ignore[no-untyped-call]
                result[at + 1] = gradient
        return tuple(result)


class _Call:
    """A call of ``attention_vjp`` without its tensors: those of a problem, the state, and its gradients that are given."""

    def __init__(self, outline: ProblemOutline, wanted: Sequence[int], has_d_out: bool, has_d_lse: bool) -> None:
        self.outline, self.has_d_out, self.has_d_lse = outline, has_d_out, has_d_lse
        self.wanted = [outline.names[at] for at in wanted]
        self.fields = frozenset(name for name, _ in self.wanted)

    def __call__(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        arrays = list(tensors)
        d_lse = arrays.pop() if self.has_d_lse else None
        d_out = arrays.pop() if self.has_d_out else None
        *inputs, out, lse = arrays
        state: Any = AttentionState(out, lse)
        gradients = attend_vjp(self.outline.problem(inputs), state, d_out, d_lse, self.fields)
        fields = ((getattr(gradients, name), at) for name, at in self.wanted)
        return tuple(field if at is None else field[at] for field, at in fields)


class _Gradients(torch.autograd.Function):
    """The gradients of a problem."""

    generate_vmap_rule = True

    @staticmethod
    def forward(call: _Call, *tensors: Tensor) -> tuple[Tensor, ...]:
        return call(*tensors)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.call, *tensors = inputs
        ctx.save_for_backward(*tensors)

    @staticmethod
    def backward(ctx: Any, *d: Tensor) -> Any:
        tensors = ctx.saved_tensors
        at = [i for i, x in enumerate(tensors) if ctx.needs_input_grad[i + 1] and x.is_floating_point()]

        def call(*varied: Tensor) -> tuple[Tensor, ...]:
            arguments = list(tensors)
            for i, x in zip(at, varied, strict=True):
                arguments[i] = x
            results: tuple[Tensor, ...] = ctx.call(*arguments)
            return results

        pullback = torch.func.vjp(call, *(tensors[i] for i in at))[1]
        result: list[Tensor | None] = [None] * (len(tensors) + 1)
        for i, results in zip(at, pullback(tuple(d)), strict=True):
            result[i + 1] = results
        return tuple(result)
