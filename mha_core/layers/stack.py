"""The bases of encoders and decoders: a layer made of sublayers, and a stack of such layers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Self, TypeVar

from ..ops import check
from .attention import MultiHeadAttention
from .base import Layer
from .feed_forward import FeedForward
from .from_torch import StateDict
from .init import Weights
from .norm import LayerNorm, Norm
from .residual import Dropout, check_dropout


@dataclass(frozen=True, eq=False)
class Block(Layer):
    """A layer made of sublayers, each in its residual connection."""

    sublayers: ClassVar[tuple[str, ...]]
    """The names that ``Dropout`` may use."""
    _parts: ClassVar[tuple[tuple[str, Any, str], ...]]
    """The fields that hold layers, their classes, and how the names of their arrays begin in torch's layer."""

    @classmethod
    def init(
        cls,
        *,
        d_model: int = 512,
        num_heads: int = 8,
        d_ff: int = 2048,
        activation: str = "relu",
        norm_first: bool = False,
        eps: float = 1e-5,
        seed: int,
        backend: str | None = None,
        dtype: Any = None,
        device: Any = None,
    ) -> Self:
        """The defaults are the base model of Vaswani et al. 2017, table 3."""
        weights = Weights(seed, backend, dtype, device)
        return cls.make(weights, d_model, num_heads, d_ff, activation=activation, norm_first=norm_first, eps=eps)

    @classmethod
    def make(
        cls, weights: Weights, d_model: int, num_heads: int, d_ff: int, *, activation: str, norm_first: bool, eps: float
    ) -> Self:
        sizes: dict[Any, tuple[Any, ...]]
        sizes = {MultiHeadAttention: (num_heads,), FeedForward: (d_ff, activation), LayerNorm: (eps,)}
        layers: Any = {name: kind.make(weights, d_model, *sizes[kind]) for name, kind, _ in cls._parts}
        return cls(**layers | {"norm_first": norm_first})

    @classmethod
    def _read(cls, state: StateDict, prefix: str, *, num_heads: int, activation: str, norm_first: bool) -> Self:
        # from nn.TransformerEncoderLayer and nn.TransformerDecoderLayer
        settings: dict[Any, dict[str, Any]]
        settings = {MultiHeadAttention: {"num_heads": num_heads}, FeedForward: {"activation": activation}, LayerNorm: {}}
        layers: Any = {name: kind._read(state, prefix + start, **settings[kind]) for name, kind, start in cls._parts}
        return cls(**layers | {"norm_first": norm_first})


B = TypeVar("B", bound=Block)


@dataclass(frozen=True, eq=False)
class Stack(Layer, Generic[B]):
    """Layers one after another, and a last norm if one is given, as pre-norm needs."""

    block: ClassVar[type[Block]]
    layers: tuple[B, ...]
    norm: Norm | None = None

    def _check(self) -> None:
        for at, layer in enumerate(self.layers):
            if not isinstance(layer, Layer):
                raise TypeError(f"layers.{at} is a {type(layer).__name__}; expected {self.block.__name__}")

    @classmethod
    def init(
        cls,
        *,
        d_model: int = 512,
        num_heads: int = 8,
        d_ff: int = 2048,
        num_layers: int = 6,
        activation: str = "relu",
        norm_first: bool = False,
        eps: float = 1e-5,
        seed: int,
        backend: str | None = None,
        dtype: Any = None,
        device: Any = None,
    ) -> Self:
        """The defaults are the base model of Vaswani et al. 2017, table 3; pre-norm ends with a norm."""
        num_layers = check.integer("num_layers", num_layers, 0)
        weights = Weights(seed, backend, dtype, device)
        layers: Any = tuple(
            cls.block.make(weights, d_model, num_heads, d_ff, activation=activation, norm_first=norm_first, eps=eps)
            for _ in range(num_layers)
        )
        return cls(layers, LayerNorm.make(weights, d_model, eps) if norm_first else None)

    @classmethod
    def _read(cls, state: StateDict, prefix: str, **settings: Any) -> Self:
        # from nn.TransformerEncoder and nn.TransformerDecoder; the number of layers follows from the keys
        places = [name.split(".")[1] for name in state.arrays if name.startswith("layers.")]
        count = 1 + max((int(place) for place in places if place.isdigit()), default=0)
        norm = LayerNorm._read(state, f"{prefix}norm.") if f"{prefix}norm.weight" in state else None
        layers: Any = tuple(cls.block._read(state, f"{prefix}layers.{at}.", **settings) for at in range(count))
        return cls(layers, norm)

    def each(self, dropout: Dropout | None) -> Iterator[tuple[B, Dropout | None]]:
        """Yield each layer with the dropout of its sublayers."""
        check_dropout(dropout, (f"layers.{at}.{name}" for at, layer in enumerate(self.layers) for name in layer.sublayers))
        for at, layer in enumerate(self.layers):
            yield layer, None if dropout is None else dropout.within(f"layers.{at}.")
