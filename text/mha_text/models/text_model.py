"""The text model of BERT (Devlin et al. 2019) and of later families: embeddings, and an encoder, which may be causal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

from mha_core import Encoder, EncoderLayer, alibi, embedding, packed, relative_bias, segments
from mha_core.plugin import Step
from mha_core.shared import Array, Bias, Layer, Mask, Namespace, Norm, backend_of, device_of, integers

from .patterns import Pattern

_MAX_DISTANCE = 128  # longer distances share one bucket (MPNet, as T5: Raffel et al. 2020, section 2.1)


@dataclass(frozen=True, eq=False)
class TextModel(Layer):
    """The sum of the embeddings of words, positions and token types, normalized and encoded."""

    words: Array
    """(vocabulary, d)."""
    positions: Array | None
    """(rows, d); None: positions enter elsewhere."""
    token_types: Array | None
    """(types, d); None: the model has no token types."""
    norm: Norm
    encoder: Encoder
    padding: int | None = None
    """The id of the padding token: positions begin after this row, as in RoBERTa (Liu et al. 2019). None: at row 0."""
    relative_table: Array | None = None
    """(buckets, heads), a relative bias that all layers share, as in MPNet (Song et al. 2020)."""
    length: int | None = None
    """The maximum number of tokens of a text; None: as ``positions`` says."""
    word_scale: float | None = None
    """The factor of the embeddings of words, sqrt(d) in Gemma; None: 1."""
    score_scale: float | None = None
    """The scale of attention; None: 1 / sqrt(features of a head)."""
    alibi: bool = False
    """True if all layers have the linear biases of ``alibi``."""
    patterns: tuple[Pattern, ...] = ()
    """The windows and rotary embeddings that layers share, as local and global layers do; (): none."""
    pattern_of: tuple[int, ...] = ()
    """The index of each layer's pattern."""

    def __call__(self, ids: Array, positions: Array, *, mask: Mask | None = None, token_type_ids: Array | None = None) -> Array:
        """Token ids, their rows of ``positions`` and their types, each (..., L) -> hidden states (..., L, d).

        ``token_type_ids``: None: all 0.
        """
        x = self.embed(ids, positions, token_type_ids)
        for layer, options in self._layers(positions, mask):
            x = layer(x, **options)
        return x if self.encoder.norm is None else self.encoder.norm(x)

    def first_states(
        self, ids: Array, positions: Array, lengths: Sequence[int], *, token_type_ids: Array | None = None
    ) -> Array:
        """Return the hidden state of the first token of each text; texts are laid end to end, (sum of lengths,) -> (n, d).

        No layer follows the last one, so in a model without rotary embeddings, biases and norms before or after sublayers it is
        computed for these tokens alone. This saves a seventh of the time of six layers.
        """
        mask, device = packed(lengths), device_of(ids)
        starts = list(accumulate(lengths[:-1], initial=0))
        if not self._is_post_norm:
            states = self(ids, positions, mask=mask, token_type_ids=token_type_ids)
            xp = backend_of({"states": states}).xp
            return xp.take(states, integers(xp, starts, device), axis=0)
        x = self.embed(ids, positions, token_type_ids)
        xp = backend_of({"x": x}).xp  # the tape's, if gradients are recorded
        *layers, last = self.encoder.layers
        for layer in layers:
            x = layer(x, mask=mask)
        numbers = [at for at, length in enumerate(lengths) for _ in range(length)]
        same_text = segments(integers(xp, range(len(lengths)), device), integers(xp, numbers, device))
        rows = xp.take(x, integers(xp, starts, device), axis=0)
        rows = last.norm_1(rows + last.attention(rows, context=x, mask=same_text))
        return last.norm_2(rows + last.feed_forward(rows))

    @property
    def _is_post_norm(self) -> bool:
        """True if layers are those of the original Transformer, with nothing but a mask in attention."""
        last = self.encoder.layers[-1]
        options = (self.bias, self.score_scale, self.encoder.norm, last.post_norm_1, last.post_norm_2)
        return not (self.patterns or last.norm_first) and all(each is None for each in options)

    def embed(self, ids: Array, positions: Array, token_type_ids: Array | None = None) -> Array:
        """Return the input of the encoder."""
        x = embedding(ids, self.words)
        if self.word_scale is not None:  # rounded to the dtype of the words first, as the model was trained
            x = _scaled(x, self.word_scale)
        if self.positions is not None:
            x = x + embedding(positions, self.positions)
        if self.token_types is not None:
            types = self.token_types
            x = x + (types[0, :] if token_type_ids is None else embedding(token_type_ids, types))
        return self.norm(x)

    def attention_maps(self, ids: Array, positions: Array) -> list[Array]:
        """Return the attention weights of each layer, (heads, L, L)."""
        x, maps = self.embed(ids, positions), []
        for layer, options in self._layers(positions, None):
            maps.append(layer.attention.weights(layer.norm_1(x) if layer.norm_first else x, **options))
            x = layer(x, **options)
        return maps

    def _layers(self, positions: Array, mask: Mask | None) -> list[tuple[EncoderLayer, dict[str, Any]]]:
        """Return each layer, with the rotary embeddings of these positions in it, and the options of its attention."""
        options = {"bias": self.bias, "scale": self.score_scale}
        if not self.patterns:
            return [(layer, {**options, "mask": mask}) for layer in self.encoder.layers]
        masks = [pattern.mask(mask) for pattern in self.patterns]
        rotaries = [None if pattern.rotary is None else pattern.rotary.at(positions) for pattern in self.patterns]
        return [
            (replace(layer, attention=replace(layer.attention, rotary=rotaries[at])), {**options, "mask": masks[at]})
            for layer, at in zip(self.encoder.layers, self.pattern_of, strict=True)
        ]

    @property
    def bias(self) -> Bias | None:
        """The bias of every layer."""
        if self.alibi:
            return alibi(self.encoder.layers[0].attention.num_heads)
        table = self.relative_table
        return None if table is None else relative_bias(table, bidirectional=True, max_distance=_MAX_DISTANCE)

    @property
    def max_length(self) -> int:
        """The maximum number of tokens of a text."""
        if self.positions is None:
            assert self.length is not None
            return self.length
        return self.positions.shape[0] - (0 if self.padding is None else self.padding + 1)

    def end_to_end(self, xp: Namespace, texts: Sequence[Sequence[int]], device: Any) -> tuple[Array, Array]:
        """Return the token ids of texts laid end to end, and their rows of ``positions``."""
        positions = [at for text in texts for at in self.position_ids(text)]
        return integers(xp, [token for text in texts for token in text], device), integers(xp, positions, device)

    def position_ids(self, ids: Sequence[int]) -> list[int]:
        """Return the row of ``positions`` for each token of a text.

        Rows count up. If they begin after the row of the padding token, a padding token in the text has that row, and is not
        counted.
        """
        if self.padding is None:
            return list(range(len(ids)))
        counts = accumulate(token != self.padding for token in ids)
        return [self.padding if token == self.padding else self.padding + n for token, n in zip(ids, counts, strict=True)]


@Step
def _scaled(x: Array, factor: float) -> Array:
    return x * backend_of({"x": x}).xp.asarray(factor, dtype=x.dtype, device=device_of(x))
