"""torch's transforms of functions: that of ``mha.value_and_grad``, rules of ours, and those that conformance applies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from mha_core.plugin import map_arrays

Function = Callable[..., tuple[Tensor, ...]]


_differentiating: ContextVar[bool] = ContextVar("differentiating", default=False)
"""Whether a function runs whose gradient ``value_and_grad`` was asked for."""


def value_and_grad(function: Callable[..., Any], arrays: Sequence[Tensor]) -> tuple[Tensor, Any, Sequence[Tensor]]:
    """Return the scalar and the other thing that a function of a list returns, and the scalar's gradients; all detached.

    Inside such a function they are not detached, so that gradients of gradients are those of torch.
    """
    inside = _differentiating.get() and torch.is_grad_enabled()
    token = _differentiating.set(True)
    try:
        with torch.enable_grad():
            # views: torch refuses to copy them with copy.deepcopy, or to write to them, where the gradient would be lost
            inputs = [(x if inside and x.requires_grad else x.detach().requires_grad_()).view_as(x) for x in arrays]
            value, other = function(inputs)
    finally:
        _differentiating.reset(token)
    released: Callable[[Any], Any] = (lambda x: x) if inside else _detached
    if not value.requires_grad:
        return value, released(other), [torch.zeros_like(x) for x in arrays]
    gradients = torch.autograd.grad(value, inputs, allow_unused=True, materialize_grads=True, create_graph=inside)
    return released(value), released(other), gradients if inside else _separate(gradients)


def _detached(value: Any) -> Any:
    return map_arrays(value, lambda x: x.detach() if isinstance(x, Tensor) else x)


def _separate(gradients: Sequence[Tensor]) -> list[Tensor]:
    """Return gradients that share no memory: torch gives one array as that of both numbers of a sum."""
    seen = set[int]()
    separate = []
    for d in gradients:
        place: int = d.untyped_storage().data_ptr()
        separate.append(d.clone() if place in seen or d.untyped_storage().nbytes() != d.nbytes else d)
        seen.add(place)
    return separate


def custom_vjp(arrays: Sequence[Tensor], function: Callable[..., Any], pullback: Callable[..., Any]) -> tuple[Tensor, ...]:
    """Return ``function(arrays)``, whose gradients are ``pullback(arrays, results, gradients of the results)``."""
    results: tuple[Tensor, ...] = _Ruled.apply(function, pullback, *arrays)  # type: ignore[no-untyped-call]
    return results


class _Ruled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, function: Callable[..., Any], pullback: Callable[..., Any], *arrays: Tensor) -> tuple[Tensor, ...]:
        results: tuple[Tensor, ...] = function(arrays)
        ctx.pullback, ctx.count = pullback, len(arrays)
        ctx.save_for_backward(*arrays, *results)
        ctx.set_materialize_grads(False)
        return results

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *d: Tensor | None) -> tuple[Tensor | None, ...]:
        saved = ctx.saved_tensors
        return None, None, *ctx.pullback(saved[: ctx.count], saved[ctx.count :], d)


def gradient(function: Function, arrays: Sequence[Tensor], towards: Sequence[Tensor]) -> Any:
    """Return the gradients of the sum of results times ``towards``; 0 for an array that no result depends on."""
    inputs = [x.detach().requires_grad_() for x in arrays]
    pairs = [(y, t) for y, t in zip(function(*inputs), towards, strict=True) if y.requires_grad]
    if not pairs:
        return [torch.zeros_like(x) for x in inputs]
    results, of_results = zip(*pairs, strict=True)
    return torch.autograd.grad(results, inputs, of_results, allow_unused=True, materialize_grads=True)


def forward_gradient(function: Function, arrays: Sequence[Tensor], tangents: Sequence[Tensor]) -> Any:
    """Return the derivatives of the results in the direction of the tangents."""
    # torch.func.jvp refuses arrays whose elements share memory
    separate = tuple(x.contiguous() if 0 in x.stride() else x for x in arrays)
    return torch.func.jvp(function, separate, tuple(tangents))[1]


def vmap(function: Function, arrays: Sequence[Tensor]) -> Any:
    """Return the results for each element along the first axis."""
    return torch.func.vmap(function)(*arrays)
