"""Fused operations of torch.nn.functional. Each accumulates half precision in float32."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from mha_core.plugin import Call


def linear(x: Tensor, w: Tensor, b: Tensor | None) -> Tensor:
    """x w + b in one product. torch expects weights transposed, so w is passed as a transposed view."""
    return F.linear(x, w.mT, b)


def layer_norm(x: Tensor, weight: Tensor | None, bias: Tensor | None, *, eps: float) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], weight, bias, eps)


def rms_norm(x: Tensor, weight: Tensor | None, *, eps: float) -> Tensor:
    return F.rms_norm(x, x.shape[-1:], weight, eps)


def gelu(x: Tensor, *, approximate: str) -> Tensor:
    """gelu(x). torch returns NaN for -inf, and on the CPU for inf: x is clamped where the result is 0, and inf is put back."""
    y = F.gelu(x.clamp(min=-40), approximate=approximate)
    return y.masked_fill(x == math.inf, math.inf)


def silu(x: Tensor) -> Tensor:
    """silu(x), clamped like gelu."""
    return F.silu(x.clamp(min=-1e4))


def supports(call: Call) -> str | None:
    """Return why gelu is not supported: x (1 + erf(x)) cancels in the lower tail, where float64 users expect accuracy."""
    return "loses float64 precision in the lower tail" if call.dtype == torch.float64 else None


def relu(x: Tensor) -> Tensor:
    return F.relu(x)
