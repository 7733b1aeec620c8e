"""The linear map, the feed-forward network and the encoder layer: cuBLAS products, with one fused kernel between two of them.

All tokens are rows of one matrix, because CuPy converts stacks of half-precision matrices to float32 before it multiplies them.
"""

from __future__ import annotations

from typing import Any

import cupy

from mha_core import scaled_dot_product_attention

from .activations import in_place
from .bfloat16 import matmul
from .norms import norm_of_sum
from .rowwise import rows


def linear(x: Any, w: Any, b: Any) -> Any:
    """x w + b; the bias is added to the product in place."""
    return _linear(rows(x), w, b).reshape(*x.shape[:-1], w.shape[1])


def _linear(x: Any, w: Any, b: Any) -> Any:
    y = matmul(x, w)
    return y if b is None else in_place("identity", y, b)


def feed_forward(x: Any, w_1: Any, b_1: Any, w_2: Any, b_2: Any, *, activation: str, w_g: Any = None, b_g: Any = None) -> Any:
    """f(x w_1 + b_1) w_2 + b_2; with a gate, (f(x w_1 + b_1) * (x w_g + b_g)) w_2 + b_2."""
    tokens = rows(x)
    gate = None if w_g is None else matmul(tokens, w_g)
    hidden = in_place(activation, matmul(tokens, w_1), b_1, gate=gate, gate_b=b_g)
    return _linear(hidden, w_2, b_2).reshape(*x.shape[:-1], w_2.shape[1])


def encoder_layer(layer: Any, x: Any, **options: Any) -> Any:
    """Apply the layer; each bias is fused with the activation, or the residual and norm, that follows its product."""
    a, f, tokens = layer.attention, layer.feed_forward, rows(x)
    y = norm_of_sum(tokens, None, None, layer.norm_1) if layer.norm_first else tokens
    y = matmul(_attend(a, y, x.shape[:-1], options), a.w_o)
    if layer.norm_first:
        residual = cupy.empty(tokens.shape, dtype=x.dtype)
        y = _hidden_product(f, norm_of_sum(y, a.b_o, tokens, layer.norm_2, total=residual))
        return in_place("identity", y, f.b_2, residual=residual).reshape(x.shape)
    residual = norm_of_sum(y, a.b_o, tokens, layer.norm_1)
    return norm_of_sum(_hidden_product(f, residual), f.b_2, residual, layer.norm_2).reshape(x.shape)


def _hidden_product(f: Any, x: Any) -> Any:
    """f(x w_1 + b_1) w_2."""
    return matmul(in_place(f.activation, matmul(x, f.w_1), f.b_1), f.w_2)


def _attend(a: Any, tokens: Any, axes: tuple[int, ...], options: dict[str, Any]) -> Any:
    """Return Concat(heads) (Vaswani et al. 2017, section 3.2.2) of tokens (n, d), as rows."""
    keys = a.num_heads if a.num_kv_heads is None else a.num_kv_heads
    projections = ((a.w_q, a.b_q, a.num_heads), (a.w_k, a.b_k, keys), (a.w_v, a.b_v, keys))
    q, k, v = (
        _linear(tokens, w, b).reshape(*axes, heads, -1).swapaxes(-2, -3)  # (..., heads, length, d), a view
        for w, b, heads in projections
    )
    out: Any = scaled_dot_product_attention(q, k, v, **options)
    return out.swapaxes(-2, -3).reshape(tokens.shape[0], -1)
