"""The pieces as torch has them fused. Half precision is accumulated in float32 inside each."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812  (torch's own name for it)

from mha_core.plugin import Call


def linear(x: Tensor, w: Tensor, b: Tensor | None) -> Tensor:
    """x w + b in one product; torch keeps weights the other way round, so w goes in transposed, as a view."""
    return F.linear(x, w.mT, b)


def layer_norm(x: Tensor, weight: Tensor | None, bias: Tensor | None, *, eps: float) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], weight, bias, eps)


def rms_norm(x: Tensor, weight: Tensor | None, *, eps: float) -> Tensor:
    return F.rms_norm(x, x.shape[-1:], weight, eps)


def gelu(x: Tensor, *, approximate: str) -> Tensor:
    """Clamped where the result is 0 in any case: torch makes NaN of -inf."""
    return F.gelu(x.clamp(min=-40), approximate=approximate)


def silu(x: Tensor) -> Tensor:
    """Clamped, as gelu."""
    return F.silu(x.clamp(min=-1e4))


def supports(call: Call) -> str | None:
    """gelu's: x (1 + erf(x)) loses the digits of its lower tail, for which one computes in float64."""
    return "has no digits of float64 in the tail" if call.dtype == torch.float64 else None


def relu(x: Tensor) -> Tensor:
    return F.relu(x)
