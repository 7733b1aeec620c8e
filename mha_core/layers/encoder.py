"""The Transformer encoder (Vaswani et al. 2017, section 3.1), post-norm as there, or pre-norm (Xiong et al. 2020)."""

from __future__ import annotations

from collections.abc import Hashable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Unpack

from ..algebra.arrays import Array
from ..dispatch.selection import check_floating
from ..ops.caches import unchanged_on_error
from ..ops.composite import composite
from ..ops.elementary import Examined
from ..ops.options import Options, given_options, shows_options
from ..ops.ranks import Ranks, heard_by_ranks
from .attention import MultiHeadAttention
from .cache import DecoderCache, KeyValueCache
from .feed_forward import FeedForward
from .from_torch import LAYER_SETTINGS, reads_torch
from .norm import LayerNorm, Norm
from .packed_cache import PackedStep
from .residual import Dropout, check_dropout, residual
from .stack import Block, Stack


@reads_torch(LAYER_SETTINGS)
@dataclass(frozen=True, eq=False)
class EncoderLayer(Block):
    """y = LayerNorm(x + MultiHead(x)), z = LayerNorm(y + FeedForward(y)).

    With ``norm_first``: y = x + MultiHead(LayerNorm(x)), z = y + FeedForward(LayerNorm(y)). Norms after the sublayers, before
    what they return is added, follow Gemma 3 (Gemma Team 2025, section 2).
    """

    attention: MultiHeadAttention
    norm_1: Norm
    feed_forward: FeedForward
    norm_2: Norm
    norm_first: bool = False
    post_norm_1: Norm | None = None
    """Applied to what the attention returns."""
    post_norm_2: Norm | None = None
    """Applied to what the feed-forward network returns."""

    sublayers = ("attention", "feed_forward")
    _parts = (
        ("attention", MultiHeadAttention, "self_attn."),
        ("norm_1", LayerNorm, "norm1."),
        ("feed_forward", FeedForward, ""),
        ("norm_2", LayerNorm, "norm2."),
    )

    @shows_options
    @heard_by_ranks
    def __call__(
        self,
        x: Array,
        *,
        cache: KeyValueCache | PackedStep | None = None,
        dropout: Dropout | None = None,
        group: Ranks | None = None,
        **options: Unpack[Options],
    ) -> Array:
        """x (..., L, d_model) -> (..., L, d_model); options as ``scaled_dot_product_attention``.

        ``cache``: x holds the positions after those in it, as in ``MultiHeadAttention``; a call that fails leaves it unchanged.
        ``dropout`` may name ``"attention"`` and ``"feed_forward"``. ``group``: x is this rank's part of a sequence that
        ``mha_core.distributed.Sharding`` describes.
        """
        check_dropout(dropout, self.sublayers, group)
        if cache is not None:
            with unchanged_on_error(cache):
                return _algebra(self, x, dropout=dropout, group=group, cache=cache, **options)
        present = {name: value for name, value in (("dropout", dropout), ("group", group)) if value is not None}
        return _encoder_layer(self, x, **present, **given_options(options))

    @cached_property
    def _facts(self) -> tuple[Hashable, ...]:
        return self.features, *((name, type(value), value) for name, value in self.settings.items())


def _named(layer: EncoderLayer, x: Array, **options: Any) -> dict[str, Array | None]:
    return {"x": x, **layer._arrays}


def _examine(layer: EncoderLayer, x: Array, **options: Any) -> Examined:
    return Examined(
        check_floating(x=x, optional=layer._operands),
        _algebra,
        shape=tuple(x.shape),
        features=layer.features.union(options),
        settings=layer.settings.items(),
    )


def _algebra(
    layer: EncoderLayer,
    x: Array,
    *,
    dropout: Dropout | None = None,
    group: Ranks | None = None,
    cache: KeyValueCache | PackedStep | None = None,
    **options: Unpack[Options],
) -> Array:
    if dropout is not None:
        options |= dropout.of_weights("attention")  # type: ignore[typeddict-item]
    own: dict[str, Any] = {} if cache is None else {"cache": cache}
    first, attention = layer.norm_first, partial(layer.attention, group=group, **own, **options)
    x = residual("attention", x, attention, layer.norm_1, first, dropout, layer.post_norm_1)
    return residual("feed_forward", x, layer.feed_forward, layer.norm_2, first, dropout, layer.post_norm_2)


_encoder_layer = composite("encoder_layer", _named, _examine, facts=lambda layer, x: layer._facts, at=1)


@reads_torch(LAYER_SETTINGS)
@dataclass(frozen=True, eq=False)
class Encoder(Stack[EncoderLayer]):
    """Encoder layers one after another, and a last norm if one is given, as pre-norm needs.

    >>> import numpy as np, mha_core as mha
    >>> encoder = mha.Encoder.init(d_model=8, num_heads=2, d_ff=16, num_layers=2, seed=0)
    >>> x = np.ones((3, 8), dtype=np.float32) + mha.sinusoidal_positions(3, 8)
    >>> encoder(x, mask=mha.causal()).shape
    (3, 8)
    """

    block = EncoderLayer

    @shows_options
    @heard_by_ranks
    def __call__(
        self,
        x: Array,
        *,
        cache: DecoderCache | None = None,
        dropout: Dropout | None = None,
        group: Ranks | None = None,
        **options: Unpack[Options],
    ) -> Array:
        """x (..., L, d_model) -> (..., L, d_model); ``mask``, ``group`` and the other options go to every layer.

        With a cache, x holds the positions after those in it: with ``mask=mha.causal()`` this is a decoder without memory. A
        step that fails leaves the cache unchanged. ``dropout`` may name ``"layers.0.attention"``, ``"layers.0.feed_forward"``,
        and so on.
        """
        with nullcontext() if cache is None else cache.step(len(self.layers)) as caches:
            for at, (layer, layer_dropout) in enumerate(self.each(dropout)):
                own = {} if caches is None else {"cache": caches[at][0]}
                x = layer(x, dropout=layer_dropout, group=group, **own, **options)
        return x if self.norm is None else self.norm(x)
