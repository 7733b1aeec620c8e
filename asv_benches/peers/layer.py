"""Peer for the encoder layer: torch's TransformerEncoderLayer, here on its fused inference path."""

from __future__ import annotations

from typing import Any

import numpy as np

from mha_conformance.bench.layer import Layer
from mha_conformance.bench.timing import Work

FUSED = "aten._transformer_encoder_layer_fwd.default"  # the only operation on torch's fast path


def fast_path(problem: Layer) -> Work:
    """Return the call of nn.TransformerEncoderLayer. Raises RuntimeError if torch does not take its fused path."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    names: list[str] = []

    class Operations(TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            names.append(str(function))
            return function(*args, **(kwargs or {}))

    numbers, layer = problem.arrays()
    x, module = torch.from_numpy(numbers), torch_layer(layer).eval()
    with torch.inference_mode(), Operations():
        module(x)
    if names != [FUSED]:
        raise RuntimeError(f"nn.TransformerEncoderLayer did not take its fast path, but ran {', '.join(names)}")
    return Work(lambda: module(x), lambda out: out.numpy(), mode=torch.inference_mode)


def torch_layer(layer: Any) -> Any:
    """Return nn.TransformerEncoderLayer with the weights of an mha_core layer on NumPy, without dropout."""
    import torch

    (d_model, d_ff), heads, activation = layer.feed_forward.w_1.shape, layer.attention.num_heads, layer.feed_forward.activation
    module = torch.nn.TransformerEncoderLayer(d_model, heads, d_ff, dropout=0.0, activation=activation, batch_first=True)
    module.load_state_dict({name: torch.from_numpy(np.ascontiguousarray(w)) for name, w in _state_dict(layer).items()})
    return module


def _state_dict(layer: Any) -> dict[str, np.ndarray]:
    """Return the arrays of an mha_core layer under torch's names; torch's matrices are (out, in)."""
    a, f = layer.attention, layer.feed_forward
    return {
        "self_attn.in_proj_weight": np.concatenate([a.w_q, a.w_k, a.w_v], axis=1).T,
        "self_attn.in_proj_bias": np.concatenate([a.b_q, a.b_k, a.b_v]),
        "self_attn.out_proj.weight": a.w_o.T,
        "self_attn.out_proj.bias": a.b_o,
        "linear1.weight": f.w_1.T,
        "linear1.bias": f.b_1,
        "linear2.weight": f.w_2.T,
        "linear2.bias": f.b_2,
        "norm1.weight": layer.norm_1.weight,
        "norm1.bias": layer.norm_1.bias,
        "norm2.weight": layer.norm_2.weight,
        "norm2.bias": layer.norm_2.bias,
    }
