"""Second derivatives, which torch's fused kernels lack: an error that says what to write, in place of torch's."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

_MESSAGE = (
    "torch's fused attention has no second derivative: compute the forward pass with mha.use_kernel('attention', 'algebra'), "
    "which has one"
)


class NoSecondDerivative(NotImplementedError):
    """A derivative of a gradient of attention was asked for."""


class _Refused(torch.autograd.Function):
    """The identity, whose derivative is an error."""

    generate_vmap_rule = True

    @staticmethod
    def forward(*gradients: Tensor) -> tuple[Tensor, ...]:
        return tuple(x.view_as(x) for x in gradients)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Keep nothing. torch.func requires this function."""

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        raise NoSecondDerivative(_MESSAGE)


def refused(out: Tensor) -> Tensor:
    """Return ``out``, the result of a fused kernel; a derivative of its gradients raises NoSecondDerivative.

    If ``backward`` runs with ``create_graph``, torch records what it computes, and the gradients pass through ``_Refused``.
    """
    node: Any = out.grad_fn
    if node is not None and node.name().startswith("ScaledDotProduct"):
        node.register_hook(_record)
    return out


def _record(gradients: tuple[Tensor | None, ...], _: Any) -> tuple[Tensor | None, ...] | None:
    if not torch.is_grad_enabled():
        return None
    defined = [x for x in gradients if x is not None]
    refuse: Any = _Refused.apply
    passed = iter(refuse(*defined))
    return tuple(None if x is None else next(passed) for x in gradients)
