"""Pieces and layers in NumPy float64, independent of the algebra."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .naive_attention import Floats, attention

_erf = np.frompyfunc(math.erf, 1, 1)


def linear(x: Floats, w: Floats, b: Floats | None = None) -> Floats:
    y: Floats = x @ w
    return y if b is None else y + b


def layer_norm(x: Floats, weight: Floats | None = None, bias: Floats | None = None, *, eps: float = 1e-5) -> Floats:
    centred = x - x.mean(axis=-1, keepdims=True)
    y: Floats = centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + eps)
    return (y if weight is None else y * weight) + (0.0 if bias is None else bias)


def rms_norm(x: Floats, weight: Floats | None = None, *, eps: float = 1e-5) -> Floats:
    y: Floats = x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + eps)
    return y if weight is None else y * weight


def gelu(x: Floats, *, approximate: str = "none") -> Floats:
    if approximate == "tanh":
        return x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2
    return x * (1 + np.asarray(_erf(x / math.sqrt(2)), dtype=np.float64)) / 2


def relu(x: Floats) -> Floats:
    return np.maximum(x, 0.0)


def silu(x: Floats) -> Floats:
    return x / (1 + np.exp(-x))


def rotary(x: Floats, cos: Floats, sin: Floats, *, interleaved: bool) -> Floats:
    half = cos.shape[-1]
    y = x.copy()
    for at in range(half):
        first, second = (2 * at, 2 * at + 1) if interleaved else (at, at + half)
        y[..., first] = x[..., first] * cos[..., at] - x[..., second] * sin[..., at]
        y[..., second] = x[..., second] * cos[..., at] + x[..., first] * sin[..., at]
    return y


def multi_head(x: Floats, net: Any, *, context: Floats | None = None, allowed: Any = None) -> Floats:
    """Return multi-head attention of x (L, d_model) over context (S, d_context); ``net`` is a layer of float64 NumPy arrays."""
    context = x if context is None else context
    key_heads = net.num_kv_heads or net.num_heads
    q, k, v = linear(x, net.w_q, net.b_q), linear(context, net.w_k, net.b_k), linear(context, net.w_v, net.b_v)

    def heads(y: Floats, count: int) -> Floats:
        return np.stack(np.split(y, count, axis=-1))

    out, _, _ = attention(heads(q, net.num_heads), heads(k, key_heads), heads(v, key_heads), allowed=allowed)
    return linear(np.concatenate(list(out), axis=-1), net.w_o, net.b_o)


def feed_forward(x: Floats, net: Any) -> Floats:
    activation = {"relu": relu, "gelu": gelu, "silu": silu}[net.activation]
    return linear(activation(linear(x, net.w_1, net.b_1)), net.w_2, net.b_2)


def _residual(x: Floats, sublayer: Any, norm: Any, norm_first: bool) -> Floats:
    def normed(y: Floats) -> Floats:
        return layer_norm(y, norm.weight, norm.bias, eps=norm.eps)

    return x + sublayer(normed(x)) if norm_first else normed(x + sublayer(x))


def encoder_layer(x: Floats, layer: Any, *, allowed: Any = None) -> Floats:
    x = _residual(x, lambda y: multi_head(y, layer.attention, allowed=allowed), layer.norm_1, layer.norm_first)
    return _residual(x, lambda y: feed_forward(y, layer.feed_forward), layer.norm_2, layer.norm_first)


def decoder_layer(y: Floats, memory: Floats, layer: Any) -> Floats:
    causal = np.tri(len(y), dtype=bool)
    y = _residual(y, lambda z: multi_head(z, layer.self_attention, allowed=causal), layer.norm_1, layer.norm_first)
    y = _residual(y, lambda z: multi_head(z, layer.cross_attention, context=memory), layer.norm_2, layer.norm_first)
    return _residual(y, lambda z: feed_forward(z, layer.feed_forward), layer.norm_3, layer.norm_first)


def stack(x: Floats, model: Any, layer: Any, *arguments: Any, **options: Any) -> Floats:
    """Apply ``layer`` for each layer of a model, then the model's last norm."""
    for weights in model.layers:
        x = layer(x, *arguments, weights, **options)
    return x if model.norm is None else layer_norm(x, model.norm.weight, model.norm.bias, eps=model.norm.eps)
