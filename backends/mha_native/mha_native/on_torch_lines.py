"""The feed-forward network and the encoder layer of torch tensors with int8 weights, by the chunks of the NumPy kernels."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.functional import linear

from mha_core import Int8Weight, scaled_dot_product_attention
from mha_core.plugin import Call
from mha_numpy.shared import Chunks, Workers

from . import int8, on_numpy_lines
from .on_torch_int8 import array
from .team import num_threads, run, team

__all__ = ["encoder_layer", "feed_forward", "supports"]


def supports(call: Call) -> str | None:
    """Return why layers are not computed here, or None."""
    if call.device.type != "cpu":
        return f"computes on the CPU, not on {call.device.type}"
    if "int8" not in call.features:
        return "computes with int8 weights; torch's own layers compute with others"
    if not team():
        return "computes on the threads of GNU's OpenMP, which this torch does not use"
    return on_numpy_lines.supports_layers(call)


def feed_forward(x: Any, *weights: Any, **options: Any) -> Any:
    """f(x w_1 + b_1) w_2 + b_2, or with a gate (f(x w_1 + b_1) * (x w_g + b_g)) w_2 + b_2."""
    return torch.from_numpy(_chunks.feed_forward(array(x), *weights, **options))


def encoder_layer(layer: Any, x: Any, **options: Any) -> Any:
    """Apply the layer. Attention is that of torch tensors."""
    return torch.from_numpy(_chunks.encoder_layer(layer, array(x), **options))


def _attend(query: Any, key: Any, value: Any, **options: Any) -> Any:
    out: Any = scaled_dot_product_attention(*(torch.from_numpy(x) for x in (query, key, value)), **options)
    return array(out)


def _linear(x: Any, w: Any, b: Any, out: Any) -> None:
    if isinstance(w, Int8Weight):
        int8.write(x, w, b, out, dense=array)
    else:
        out[:] = array(linear(torch.from_numpy(x), w.mT, b))


def _activate(name: str, x: Any, bias: Any) -> None:
    on_numpy_lines.activate_lines(name, x, _optional(bias))


def _normed(x: Any, weight: Any, bias: Any, eps: float, out: Any) -> None:
    on_numpy_lines.write_normed(x, _optional(weight), _optional(bias), eps, out)


def _optional(x: Any) -> Any:
    return None if x is None else array(x)


_chunks = Chunks(_activate, _normed, _linear, _attend, Workers(run, num_threads))
