"""The feed-forward network and the encoder layer for inference: everything after attention is in place, in chunks of rows.

A chunk's hidden features stay in the cache between the two products of the feed-forward network, and all chunks use the same
memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from mha_core import linear as chosen_linear
from mha_core import scaled_dot_product_attention
from mha_core.plugin import Call

from .functional import layer_norm
from .onednn import fastest_linear

_ROWS = 512  # in a chunk; 256 is up to 10% slower with MKL, 4096 20% with oneDNN, because hidden features leave the cache

_FEW, _WEIGHT = 32, 1 << 17  # rows, and numbers of a weight that takes longer to read than a kernel to choose

_ACTIVATIONS = {  # clamped as in functional.py
    "relu": lambda x: x.relu_(),
    "gelu": lambda x: _gelu(x, "none"),
    "gelu_tanh": lambda x: _gelu(x, "tanh"),
    "silu": lambda x: F.silu(x.clamp_(min=-1e4), inplace=True),
}


def _gelu(x: Tensor, approximate: str) -> Tensor:
    """Replace x by gelu(x). On the CPU torch returns NaN for inf, so inf is put back."""
    infinite = x == math.inf
    y: Tensor = torch.ops.aten.gelu_(x.clamp_(min=-40), approximate=approximate)
    return y.masked_fill_(infinite, math.inf)


def supports(call: Call) -> str | None:
    return "supports float32 and narrower, not float64" if call.dtype == torch.float64 else None


def linear(x: Tensor, w: Tensor, b: Tensor | None) -> Tensor:
    """x w + b. Few rows take the time of reading a large weight, so the operation chooses a kernel for them, of any plugin."""
    if x.is_cpu and x.shape[:-1].numel() < _FEW and w.numel() >= _WEIGHT:
        y: Any = chosen_linear(x, w, b)
        return y
    return fastest_linear(x, w, b)


def encoder_layer(layer: Any, x: Tensor, **options: Any) -> Tensor:
    """Apply the layer. No gradient is recorded, so intermediates are overwritten; ``x`` and the weights never are."""
    attended = _attend(layer, _norm(layer.norm_1, x) if layer.norm_first else x, options)
    return _by_rows(partial(_after_attention, layer), x.shape[-1], attended, x)


def feed_forward(x: Tensor, w_1: Tensor, b_1: Tensor | None, w_2: Tensor, b_2: Tensor | None, **options: Any) -> Tensor:
    """f(x w_1 + b_1) w_2 + b_2, or with a gate (f(x w_1 + b_1) * (x w_g + b_g)) w_2 + b_2; records no gradient."""
    return _by_rows(lambda rows: _feed_forward(rows, w_1, b_1, w_2, b_2, **options), w_2.shape[1], x)


def _by_rows(function: Callable[..., Tensor], width: int, *arrays: Tensor) -> Tensor:
    """Return (..., width), what ``function`` returns for rows of the arrays, in chunks."""
    first, shape = arrays[0], (*arrays[0].shape[:-1], width)
    rows = [x.reshape(-1, x.shape[-1]) for x in arrays]
    size = _ROWS if first.is_cpu else rows[0].shape[0]
    if rows[0].shape[0] <= size:
        return function(*rows).reshape(shape)
    out = torch.empty(shape, dtype=first.dtype, device=first.device)
    for to, *chunk in zip(*(torch.split(x, size) for x in (out.view(-1, width), *rows)), strict=True):
        to.copy_(function(*chunk))
    return out


def _attend(layer: Any, x: Tensor, options: dict[str, Any]) -> Tensor:
    """Return Concat(heads) (Vaswani et al. 2017, section 3.2.2)."""
    a = layer.attention
    keys = a.num_heads if a.num_kv_heads is None else a.num_kv_heads
    projections = ((a.w_q, a.b_q, a.num_heads), (a.w_k, a.b_k, keys), (a.w_v, a.b_v, keys))
    q, k, v = (_heads(linear(x, w, b), heads) for w, b, heads in projections)
    out: Any = scaled_dot_product_attention(q, k, v, **options)
    heads: Tensor = out.transpose(-2, -3).flatten(-2)
    return heads


def _heads(x: Any, count: int) -> Any:
    """(..., length, count * d) -> (..., count, length, d), a view."""
    return x.unflatten(-1, (count, -1)).transpose(-2, -3)


def _after_attention(layer: Any, heads: Tensor, x: Tensor) -> Tensor:
    """Return some rows of the result; after attention, each row depends on itself only."""
    y = linear(heads, layer.attention.w_o, layer.attention.b_o).add_(x)
    if layer.norm_first:
        return _network(layer.feed_forward, _norm(layer.norm_2, y)).add_(y)
    y = _norm(layer.norm_1, y)
    return _norm(layer.norm_2, _network(layer.feed_forward, y).add_(y))


def _network(f: Any, x: Tensor) -> Tensor:
    return _feed_forward(x, f.w_1, f.b_1, f.w_2, f.b_2, activation=f.activation)


def _feed_forward(
    x: Tensor,
    w_1: Tensor,
    b_1: Tensor | None,
    w_2: Tensor,
    b_2: Tensor | None,
    *,
    activation: str,
    w_g: Tensor | None = None,
    b_g: Tensor | None = None,
) -> Tensor:
    hidden: Any = _ACTIVATIONS[activation](linear(x, w_1, b_1))  # type: ignore[no-untyped-call]
    if w_g is not None:
        hidden = hidden.mul_(linear(x, w_g, b_g))
    return linear(hidden, w_2, b_2)


def _norm(norm: Any, x: Tensor) -> Tensor:
    return layer_norm(x, norm.weight, norm.bias, eps=norm.eps)
