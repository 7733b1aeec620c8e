"""Layers from torch's modules and state dicts. torch is not imported: a module is known by its attributes.

torch writes y = W x with W (out, in); here y = x w with w (in, out), so matrices are transposed, as views. The arrays stay
torch's, detached: ``.to(backend)`` takes them elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ..algebra.arrays import Array
from .attention import MultiHeadAttention
from .decoder import Decoder, DecoderLayer
from .encoder import Encoder, EncoderLayer
from .feed_forward import FeedForward
from .norm import LayerNorm

_ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "silu": "silu", "ReLU": "relu", "GELU": "gelu", "SiLU": "silu"}


class StateDict:
    """A state dict that knows which of its keys were taken."""

    def __init__(self, arrays: Mapping[str, Array]) -> None:
        self.arrays = dict(arrays)
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
        raise TypeError(f"{cls.__name__} has no counterpart in torch; known: {', '.join(kind.__name__ for kind in _READERS)}")
    state = StateDict(arrays_of(source))
    settings = settings_of(source, given, cls is MultiHeadAttention)
    layer = _READERS[cls](state, "", **settings)
    state.finish(cls.__name__)
    return layer


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
    known = needed if only_attention else (*needed, "eps")
    if strange := sorted(set(given) - set(known)):
        raise TypeError(f"from_torch has no option {', '.join(strange)}; expected {', '.join(known)}")
    if not hasattr(source, "state_dict"):
        if absent := [name for name in needed if name not in given]:
            raise TypeError(f"a state dict does not tell {', '.join(absent)}: give {', '.join(f'{name}=' for name in absent)}")
        return dict(given)
    if given:
        raise TypeError(f"the module itself tells {', '.join(given)}: leave that out")
    layer = source.layers[0] if hasattr(source, "layers") else source
    attention = getattr(layer, "self_attn", layer)
    if attention.bias_k is not None or attention.add_zero_attn:
        raise ValueError("add_bias_kv and add_zero_attn have no counterpart here")
    if only_attention:
        return {"num_heads": attention.num_heads}
    return {
        "num_heads": attention.num_heads,
        "activation": activation_of(layer.activation),
        "norm_first": layer.norm_first,
        "eps": layer.norm1.eps,
    }


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


def norm_from(state: StateDict, prefix: str, eps: float) -> LayerNorm:
    """nn.LayerNorm."""
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


def encoder_layer_from(
    state: StateDict, prefix: str, *, num_heads: int, activation: str, norm_first: bool, eps: float = 1e-5
) -> EncoderLayer:
    """nn.TransformerEncoderLayer."""
    return EncoderLayer(
        attention=attention_from(state, f"{prefix}self_attn.", num_heads),
        norm_1=norm_from(state, f"{prefix}norm1.", eps),
        feed_forward=feed_forward_from(state, prefix, activation),
        norm_2=norm_from(state, f"{prefix}norm2.", eps),
        norm_first=norm_first,
    )


def decoder_layer_from(
    state: StateDict, prefix: str, *, num_heads: int, activation: str, norm_first: bool, eps: float = 1e-5
) -> DecoderLayer:
    """nn.TransformerDecoderLayer."""
    return DecoderLayer(
        self_attention=attention_from(state, f"{prefix}self_attn.", num_heads),
        norm_1=norm_from(state, f"{prefix}norm1.", eps),
        cross_attention=attention_from(state, f"{prefix}multihead_attn.", num_heads),
        norm_2=norm_from(state, f"{prefix}norm2.", eps),
        feed_forward=feed_forward_from(state, prefix, activation),
        norm_3=norm_from(state, f"{prefix}norm3.", eps),
        norm_first=norm_first,
    )


def _layers(
    state: StateDict, make: Callable[..., Any], settings: Mapping[str, Any]
) -> tuple[tuple[Any, ...], LayerNorm | None]:
    """The layers of a stack, counted by their keys, and its last norm."""
    places = [name.split(".")[1] for name in state.arrays if name.startswith("layers.")]
    count = 1 + max((int(place) for place in places if place.isdigit()), default=0)
    norm = norm_from(state, "norm.", settings.get("eps", 1e-5)) if "norm.weight" in state else None
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
