"""Layers from torch's modules and state dicts. torch is not imported: a module is known by its attributes.

torch writes y = W x with W (out, in); here y = x w with w (in, out), so matrices are transposed, as views. The arrays stay
torch's, detached: ``.to(backend)`` takes them elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ..algebra.arrays import Array
from ..ops.functional import check_activation
from .attention import MultiHeadAttention
from .decoder import Decoder, DecoderLayer
from .encoder import Encoder, EncoderLayer
from .feed_forward import FeedForward
from .norm import LayerNorm

_ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "silu": "silu", "ReLU": "relu", "GELU": "gelu", "SiLU": "silu"}


class StateDict:
    """A state dict that knows which of its keys were taken."""

    def __init__(self, arrays: Mapping[str, Array], eps: Mapping[str, float] | float) -> None:
        self.arrays = dict(arrays)
        self.eps = eps
        self.taken: set[str] = set()
        self.missing: list[str] = []

    def __contains__(self, name: str) -> bool:
        return name in self.arrays

    def take(self, name: str) -> Any:
        if name not in self.arrays:
            self.missing.append(name)
            return None
        self.taken.add(name)
        return self.arrays[name]

    def optional(self, name: str) -> Any:
        return self.take(name) if name in self.arrays else None

    def finish(self, what: str) -> None:
        """Raise ValueError for keys that were missing, or that nobody took, listing them."""
        unknown = sorted(set(self.arrays) - self.taken)
        told = [f"{label} {', '.join(names)}" for label, names in (("missing", self.missing), ("unknown", unknown)) if names]
        if told:
            raise ValueError(f"the state dict does not fit {what}: {'; '.join(told)}")


def read(cls: type, source: Any, given: Mapping[str, Any]) -> Any:
    """A layer of ``cls`` from a torch module or its state dict."""
    if cls not in _READERS:
        known = ", ".join(kind.__name__ for kind in _READERS)
        raise TypeError(f"a {cls.__name__} is not read from torch by itself; these are: {known}")
    given = dict(given)
    only_attention = cls is MultiHeadAttention
    eps = given.pop("eps", 1e-5) if not only_attention and not hasattr(source, "state_dict") else norms_of(source)
    state = StateDict(arrays_of(source), eps)
    layer = _READERS[cls](state, "", **settings_of(source, given, only_attention))
    state.finish(cls.__name__)
    return layer


def norms_of(source: Any) -> Mapping[str, float]:
    """The eps of every norm of a module, by name. Raises ValueError for a norm that is no LayerNorm with weights."""
    if not hasattr(source, "named_modules"):
        return {}
    norms = {name: module for name, module in source.named_modules() if "Norm" in type(module).__name__}
    for name, module in norms.items():
        if type(module).__name__ != "LayerNorm" or module.weight is None:
            raise ValueError(f"{name} is {module}, which has no counterpart here; expected a LayerNorm with weights")
    return {name: module.eps for name, module in norms.items()}


def arrays_of(source: Any) -> Mapping[str, Array]:
    """The state dict of a module, or the mapping that was given. Raises TypeError for anything else."""
    if hasattr(source, "state_dict"):
        return source.state_dict()
    if isinstance(source, Mapping):
        return source
    raise TypeError(f"from_torch was given a {type(source).__name__}; expected a torch module, or its state dict")


def activation_of(module: Any) -> str:
    """The name of torch's activation, a function or a module. Raises ValueError for one that has no counterpart."""
    name = getattr(module, "__name__", type(module).__name__)
    if name not in _ACTIVATIONS:
        raise ValueError(f"activation {name} has no counterpart here; known: {', '.join(sorted(set(_ACTIVATIONS.values())))}")
    return "gelu_tanh" if getattr(module, "approximate", "none") == "tanh" else _ACTIVATIONS[name]


def settings_of(source: Any, given: Mapping[str, Any], only_attention: bool) -> dict[str, Any]:
    """What a state dict cannot tell: read from the module, or given with the state dict."""
    needed = ("num_heads",) if only_attention else ("num_heads", "activation", "norm_first")
    if strange := sorted(set(given) - set(needed)):
        expected = f"{', '.join(needed)}, and eps with a state dict"
        raise TypeError(f"from_torch has no option {', '.join(strange)}; expected {expected}")
    if not hasattr(source, "state_dict"):
        if absent := [name for name in needed if name not in given]:
            raise TypeError(f"a state dict does not tell {', '.join(absent)}: give {', '.join(f'{name}=' for name in absent)}")
        if not only_attention:
            check_activation(given["activation"])
        return dict(given)
    if given:
        raise TypeError(f"the module itself tells {', '.join(given)}: leave that out")
    layers = list(getattr(source, "layers", [source]))
    told = [_told(source, layer, only_attention) for layer in layers]
    if any(other != told[0] for other in told):
        raise ValueError(f"the layers of {type(source).__name__} differ in their settings: {told}")
    return told[0]


def _told(source: Any, layer: Any, only_attention: bool) -> dict[str, Any]:
    """What one layer of a module tells of itself."""
    attention: Any = layer if only_attention else getattr(layer, "self_attn", None)
    if not hasattr(attention, "in_proj_weight"):
        raise TypeError(f"from_torch was given a {type(source).__name__}, which is not the module that this layer stands for")
    parts: tuple[Any, ...] = (attention, getattr(layer, "multihead_attn", attention))
    for part in parts:
        if part.bias_k is not None or part.add_zero_attn:
            raise ValueError("add_bias_kv and add_zero_attn have no counterpart here")
    heads = {"num_heads": attention.num_heads}
    return heads if only_attention else heads | {"activation": activation_of(layer.activation), "norm_first": layer.norm_first}


def attention_from(state: StateDict, prefix: str, num_heads: int) -> MultiHeadAttention:
    """nn.MultiheadAttention."""
    names = ("q_proj_weight", "k_proj_weight", "v_proj_weight")
    if prefix + names[0] in state:
        weights = tuple(state.take(prefix + name) for name in names)
    else:
        weights = _thirds(state.take(f"{prefix}in_proj_weight"))
    w_q, w_k, w_v = (_transposed(w) for w in weights)
    b_q, b_k, b_v = _thirds(state.optional(f"{prefix}in_proj_bias"))
    w_o, b_o = _transposed(state.take(f"{prefix}out_proj.weight")), state.optional(f"{prefix}out_proj.bias")
    return MultiHeadAttention(w_q, w_k, w_v, w_o, num_heads, b_q, b_k, b_v, b_o)


def norm_from(state: StateDict, prefix: str) -> LayerNorm:
    """nn.LayerNorm."""
    eps = state.eps if isinstance(state.eps, float) else state.eps.get(prefix.removesuffix("."), 1e-5)
    return LayerNorm(state.take(f"{prefix}weight"), state.optional(f"{prefix}bias"), eps)


def feed_forward_from(state: StateDict, prefix: str, activation: str) -> FeedForward:
    """linear1 and linear2 of torch's layers."""
    return FeedForward(
        _transposed(state.take(f"{prefix}linear1.weight")),
        state.optional(f"{prefix}linear1.bias"),
        _transposed(state.take(f"{prefix}linear2.weight")),
        state.optional(f"{prefix}linear2.bias"),
        activation,
    )


def encoder_layer_from(state: StateDict, prefix: str, *, num_heads: int, activation: str, norm_first: bool) -> EncoderLayer:
    """nn.TransformerEncoderLayer."""
    return EncoderLayer(
        attention=attention_from(state, f"{prefix}self_attn.", num_heads),
        norm_1=norm_from(state, f"{prefix}norm1."),
        feed_forward=feed_forward_from(state, prefix, activation),
        norm_2=norm_from(state, f"{prefix}norm2."),
        norm_first=norm_first,
    )


def decoder_layer_from(state: StateDict, prefix: str, *, num_heads: int, activation: str, norm_first: bool) -> DecoderLayer:
    """nn.TransformerDecoderLayer."""
    return DecoderLayer(
        self_attention=attention_from(state, f"{prefix}self_attn.", num_heads),
        norm_1=norm_from(state, f"{prefix}norm1."),
        cross_attention=attention_from(state, f"{prefix}multihead_attn.", num_heads),
        norm_2=norm_from(state, f"{prefix}norm2."),
        feed_forward=feed_forward_from(state, prefix, activation),
        norm_3=norm_from(state, f"{prefix}norm3."),
        norm_first=norm_first,
    )


def _layers(
    state: StateDict, make: Callable[..., Any], settings: Mapping[str, Any]
) -> tuple[tuple[Any, ...], LayerNorm | None]:
    """The layers of a stack, counted by their keys, and its last norm."""
    places = [name.split(".")[1] for name in state.arrays if name.startswith("layers.")]
    count = 1 + max((int(place) for place in places if place.isdigit()), default=0)
    norm = norm_from(state, "norm.") if "norm.weight" in state else None
    return tuple(make(state, f"layers.{at}.", **settings) for at in range(count)), norm


def encoder_from(state: StateDict, _: str, **settings: Any) -> Encoder:
    """nn.TransformerEncoder."""
    return Encoder(*_layers(state, encoder_layer_from, settings))


def decoder_from(state: StateDict, _: str, **settings: Any) -> Decoder:
    """nn.TransformerDecoder."""
    return Decoder(*_layers(state, decoder_layer_from, settings))


_READERS: dict[type, Callable[..., Any]] = {
    MultiHeadAttention: attention_from,
    EncoderLayer: encoder_layer_from,
    DecoderLayer: decoder_layer_from,
    Encoder: encoder_from,
    Decoder: decoder_from,
}


def _transposed(w: Any) -> Any:
    return None if w is None else w.T


def _thirds(w: Any) -> tuple[Any, Any, Any]:
    if w is None:
        return None, None, None
    size = w.shape[0] // 3
    return w[:size, ...], w[size : 2 * size, ...], w[2 * size :, ...]
