"""torch's transforms of functions, as conformance applies them to operations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

Function = Callable[..., tuple[Tensor, ...]]


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
