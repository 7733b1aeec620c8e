"""The encoder layer without what inference can leave out: one call for each product, sums in place."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from mha_core import scaled_dot_product_attention
from mha_core.plugin import Call

from .pieces import layer_norm, linear

_ACTIVATIONS = {  # clamped as in pieces.py
    "relu": lambda x: x.relu_(),
    "gelu": lambda x: F.gelu(x.clamp_(min=-40)),
    "gelu_tanh": lambda x: F.gelu(x.clamp_(min=-40), approximate="tanh"),
    "silu": lambda x: F.silu(x.clamp_(min=-1e4), inplace=True),
}


def supports(call: Call) -> str | None:
    return "is for float32 and narrower" if call.dtype == torch.float64 else None


def encoder_layer(layer: Any, x: Tensor, **options: Any) -> Tensor:
    """No gradient is recorded, so whatever is made here may be written to; ``x`` and the weights never are."""
    if layer.norm_first:
        y = _attend(layer, _norm(layer.norm_1, x), options).add_(x)
        return _feed_forward(layer, _norm(layer.norm_2, y)).add_(y)
    y = _norm(layer.norm_1, _attend(layer, x, options).add_(x))
    return _norm(layer.norm_2, _feed_forward(layer, y).add_(y))


def _attend(layer: Any, x: Tensor, options: dict[str, Any]) -> Tensor:
    """Concat(heads) w_o (Vaswani et al. 2017, section 3.2.2)."""
    a = layer.attention
    keys = a.num_heads if a.num_kv_heads is None else a.num_kv_heads
    projections = ((a.w_q, a.b_q, a.num_heads), (a.w_k, a.b_k, keys), (a.w_v, a.b_v, keys))
    q, k, v = (_heads(linear(x, w, b), heads) for w, b, heads in projections)
    out: Any = scaled_dot_product_attention(q, k, v, **options)
    return linear(out.transpose(-2, -3).flatten(-2), a.w_o, a.b_o)


def _heads(x: Any, count: int) -> Any:
    """(..., length, count * d) -> (..., count, length, d), a view."""
    return x.unflatten(-1, (count, -1)).transpose(-2, -3)


def _feed_forward(layer: Any, x: Tensor) -> Tensor:
    f = layer.feed_forward
    hidden: Any = _ACTIVATIONS[f.activation](linear(x, f.w_1, f.b_1))  # type: ignore[no-untyped-call]
    return linear(hidden, f.w_2, f.b_2)


def _norm(norm: Any, x: Tensor) -> Tensor:
    return layer_norm(x, norm.weight, norm.bias, eps=norm.eps)
