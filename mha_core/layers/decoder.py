"""The Transformer decoder (Vaswani et al. 2017, section 3.1), at once or step by step with a cache."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Self

from ..algebra.arrays import Array
from ..algebra.masks import Mask, as_mask, causal
from .attention import MultiHeadAttention
from .cache import DecoderCache, KeyValueCache, unchanged_on_error
from .feed_forward import FeedForward
from .init import Weights
from .norm import LayerNorm, Norm
from .residual import Dropout, residual
from .stack import Block, Stack


@dataclass(frozen=True, eq=False)
class DecoderLayer(Block):
    """Causal self-attention, attention to the memory, feed-forward, each in its residual connection."""

    self_attention: MultiHeadAttention
    norm_1: Norm
    cross_attention: MultiHeadAttention
    norm_2: Norm
    feed_forward: FeedForward
    norm_3: Norm
    norm_first: bool = False

    sublayers = ("self_attention", "cross_attention", "feed_forward")

    @classmethod
    def make(
        cls, weights: Weights, d_model: int, num_heads: int, d_ff: int, *, activation: str, norm_first: bool, eps: float
    ) -> Self:
        return cls(
            self_attention=MultiHeadAttention.make(weights, d_model, num_heads),
            norm_1=LayerNorm.make(weights, d_model, eps),
            cross_attention=MultiHeadAttention.make(weights, d_model, num_heads),
            norm_2=LayerNorm.make(weights, d_model, eps),
            feed_forward=FeedForward.make(weights, d_model, d_ff, activation),
            norm_3=LayerNorm.make(weights, d_model, eps),
            norm_first=norm_first,
        )

    def __call__(
        self,
        y: Array,
        memory: Array,
        *,
        mask: Mask | Array | None = None,
        memory_mask: Mask | Array | None = None,
        cache: tuple[KeyValueCache, KeyValueCache] | None = None,
        dropout: Dropout | None = None,
    ) -> Array:
        """y (..., L, d_model), memory (..., S, d_model) -> (..., L, d_model).

        mask: what else than causality restrains self-attention. memory_mask: (..., H, L, S), for the memory.
        cache: of this layer's own positions and of the memory. ``dropout`` may name the three sublayers.
        """
        if dropout is not None:
            dropout.check(self.sublayers)
        own, of_memory = (None, None) if cache is None else cache
        attend = partial(self.self_attention, mask=causal() if mask is None else causal() & as_mask(mask), cache=own)
        look = partial(self.cross_attention, context=memory, mask=memory_mask, cache=of_memory)
        with unchanged_on_error(*(cache or ())):
            y = residual("self_attention", y, attend, self.norm_1, self.norm_first, dropout)
            y = residual("cross_attention", y, look, self.norm_2, self.norm_first, dropout)
            return residual("feed_forward", y, self.feed_forward, self.norm_3, self.norm_first, dropout)


@dataclass(frozen=True, eq=False)
class Decoder(Stack[DecoderLayer]):
    """Decoder layers one after another, and a last norm where one is given, as pre-norm wants.

    >>> import numpy as np, mha_core as mha
    >>> decoder = mha.Decoder.init(d_model=8, num_heads=2, d_ff=16, num_layers=2, seed=0)
    >>> decoder(np.ones((3, 8), dtype=np.float32), np.ones((5, 8), dtype=np.float32)).shape
    (3, 8)
    """

    block = DecoderLayer

    def __call__(
        self,
        y: Array,
        memory: Array,
        *,
        mask: Mask | Array | None = None,
        memory_mask: Mask | Array | None = None,
        cache: DecoderCache | None = None,
        dropout: Dropout | None = None,
    ) -> Array:
        """y (..., L, d_model), memory (..., S, d_model) -> (..., L, d_model).

        With a cache, y holds the positions after those decoded before; it gives the numbers of one pass over all of them,
        and a step that fails leaves it as it was. ``mask`` then spans the positions of y and all keys so far.
        """
        parts = self.each(dropout)
        if cache is None:
            for layer, part in parts:
                y = layer(y, memory, mask=mask, memory_mask=memory_mask, dropout=part)
        else:
            with cache.step(len(self.layers)) as caches:
                for (layer, part), own in zip(parts, caches, strict=True):
                    y = layer(y, memory, mask=mask, memory_mask=memory_mask, cache=own, dropout=part)
        return y if self.norm is None else self.norm(y)
