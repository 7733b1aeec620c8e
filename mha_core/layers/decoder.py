"""The Transformer decoder (Vaswani et al. 2017, section 3.1), all positions at once or step by step with a cache."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from ..algebra.arrays import Array, is_array
from ..algebra.expressions import Mask, as_mask
from ..algebra.masks import causal
from ..ops import check
from ..ops.caches import unchanged_on_error
from ..ops.ranks import Ranks, heard_by_ranks
from .attention import MultiHeadAttention
from .cache import DecoderCache, KeyValueCache
from .feed_forward import FeedForward
from .from_torch import LAYER_SETTINGS, reads_torch
from .norm import LayerNorm, Norm
from .residual import Dropout, check_dropout, residual
from .stack import Block, Stack


@reads_torch(LAYER_SETTINGS)
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
    _parts = (
        ("self_attention", MultiHeadAttention, "self_attn."),
        ("norm_1", LayerNorm, "norm1."),
        ("cross_attention", MultiHeadAttention, "multihead_attn."),
        ("norm_2", LayerNorm, "norm2."),
        ("feed_forward", FeedForward, ""),
        ("norm_3", LayerNorm, "norm3."),
    )

    @heard_by_ranks
    def __call__(
        self,
        y: Array,
        memory: Array,
        *,
        mask: Mask | Array | None = None,
        memory_mask: Mask | Array | None = None,
        cache: tuple[KeyValueCache, KeyValueCache] | None = None,
        dropout: Dropout | None = None,
        group: Ranks | None = None,
    ) -> Array:
        """y (..., L, d_model), memory (..., S, d_model) -> (..., L, d_model).

        mask: for self-attention, in addition to causality. memory_mask: for the memory, (..., H, L, S).
        cache: one for this layer's own positions, and one for the memory. ``dropout`` may name the three sublayers.
        group: y and memory are this rank's parts of sequences that ``mha_core.distributed.Sharding`` describes; with a cache,
        they are the whole, and the cache for own positions is spread over the ranks.
        """
        check_dropout(dropout, self.sublayers, group)
        self._check_features(y, memory)
        self_cache, memory_cache = (None, None) if cache is None else cache
        self_mask = causal() if mask is None else causal() & as_mask(mask)
        self_options, memory_options = ({} if dropout is None else dropout.of_weights(name) for name in self.sublayers[:2])
        self_options["group"], memory_options["group"] = group, group if cache is None else None
        self_attention = partial(self.self_attention, mask=self_mask, cache=self_cache, **self_options)
        cross_attention = partial(self.cross_attention, context=memory, mask=memory_mask, cache=memory_cache, **memory_options)
        with unchanged_on_error(cache):
            y = residual("self_attention", y, self_attention, self.norm_1, self.norm_first, dropout)
            y = residual("cross_attention", y, cross_attention, self.norm_2, self.norm_first, dropout)
            return residual("feed_forward", y, self.feed_forward, self.norm_3, self.norm_first, dropout)

    def _check_features(self, y: Array, memory: Array) -> None:
        """Raise ValueError for the wrong input by its own name: the sublayers call both of them x or context."""
        for name, x, attention, weight in (
            ("y", y, self.self_attention, "w_q"),
            ("memory", memory, self.cross_attention, "w_k"),
        ):
            if is_array(x) and x.ndim and isinstance(attention, MultiHeadAttention):  # not a user's own layer
                check.features(name, x, getattr(attention, weight).shape[0], "d_model")


@reads_torch(LAYER_SETTINGS)
@dataclass(frozen=True, eq=False)
class Decoder(Stack[DecoderLayer]):
    """Decoder layers one after another, and a last norm if one is given, as pre-norm needs.

    >>> import numpy as np, mha_core as mha
    >>> decoder = mha.Decoder.init(d_model=8, num_heads=2, d_ff=16, num_layers=2, seed=0)
    >>> decoder(np.ones((3, 8), dtype=np.float32), np.ones((5, 8), dtype=np.float32)).shape
    (3, 8)
    """

    block = DecoderLayer

    @heard_by_ranks
    def __call__(
        self,
        y: Array,
        memory: Array,
        *,
        mask: Mask | Array | None = None,
        memory_mask: Mask | Array | None = None,
        cache: DecoderCache | None = None,
        dropout: Dropout | None = None,
        group: Ranks | None = None,
    ) -> Array:
        """y (..., L, d_model), memory (..., S, d_model) -> (..., L, d_model); ``group`` as in ``DecoderLayer``.

        With a cache, y holds the positions after those already decoded, and the results are those of one pass over all
        positions; ``mask`` then spans the positions of y and all keys so far. A step that fails leaves the cache unchanged.
        """
        layers = self.each(dropout)
        if cache is None:
            for layer, layer_dropout in layers:
                y = layer(y, memory, mask=mask, memory_mask=memory_mask, dropout=layer_dropout, group=group)
        else:
            with cache.step(len(self.layers)) as caches:
                for (layer, layer_dropout), layer_cache in zip(layers, caches, strict=True):
                    call = partial(layer, mask=mask, memory_mask=memory_mask, cache=layer_cache)
                    y = call(y, memory, dropout=layer_dropout, group=group)
        return y if self.norm is None else self.norm(y)
