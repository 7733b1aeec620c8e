"""A language model: a causal text model, and the head that makes logits of the next token from its hidden states."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any, ClassVar

from mha_core import DecoderCache, EncoderLayer, PackedCache, linear, packed
from mha_core.plugin import Step
from mha_core.shared import Array, Layer, backend_of, device_of, integers

from .checkpoint import build_model
from .config import Config
from .family import Family
from .files import ModelError, WeightsFile, read_json
from .text_model import TextModel

HEAD = "lm_head.weight"


@dataclass(frozen=True, eq=False)
class CausalModel(Layer):
    """A causal text model and its head, step by step with caches, or on whole texts."""

    text: TextModel
    head: Array | None
    """(d, vocabulary); None: the embeddings of the words are the head's weights too."""
    _layers: ClassVar[list[tuple[EncoderLayer, dict[str, Any]]]]  # of each model, and no field: its arrays are those of text

    def __post_init__(self) -> None:
        """Make the layers, whose rotary embeddings take positions from caches, and the options of their attention."""
        patterns, scale = self.text.patterns, self.text.score_scale
        layers = [
            (
                replace(layer, attention=replace(layer.attention, rotary=patterns[at].rotary)),
                {"mask": patterns[at].mask(None), "scale": scale},
            )
            for layer, at in zip(self.text.encoder.layers, self.text.pattern_of, strict=True)
        ]
        object.__setattr__(self, "_layers", layers)  # at once: torch.compile follows no property that is cached

    def caches(self, count: int, dtype: str | None = None) -> list[PackedCache]:
        """Return an empty cache for each layer, for this many texts; that of a layer with a window keeps the window only.

        ``dtype``: as in ``PackedCache``.
        """
        windows = [None if pattern.left is None else pattern.left + 1 for pattern in self.text.patterns]
        return [PackedCache(count, window=windows[at], dtype=dtype) for at in self.text.pattern_of]

    def step(self, ids: Sequence[Sequence[int]], caches: Sequence[PackedCache]) -> Array:
        """Append tokens to texts, and return the hidden states of their last ones, (n, d); a text without tokens has no row."""
        lengths = [len(text) for text in ids]
        words = self.text.words
        xp, device = backend_of({"words": words}).xp, device_of(words)
        tokens = integers(xp, [token for text in ids for token in text], device)
        x = self.text.embed(tokens, tokens)  # causal families have no table of positions
        for (layer, options), cache in zip(self._layers, caches, strict=True):
            x = layer(x, cache=cache.next(lengths), **options)
        ends = [end - 1 for end, length in zip(accumulate(lengths), lengths, strict=True) if length]
        return self._normed(x if len(ends) == tokens.shape[0] else xp.take(x, integers(xp, ends, device), axis=0))

    def next_logits(self, ids: Array, cache: DecoderCache) -> Array:
        """Append tokens to texts of one length, and return the logits of the tokens that follow, (n, L) -> (n, vocabulary).

        It reads and returns arrays only, so ``jax.jit`` and ``torch.compile`` take it whole; with a cache that has a capacity
        once for each L, whatever the cache holds. Raises ValueError for ids of another shape, or none.
        """
        if ids.ndim != 2 or not ids.shape[1]:
            raise ValueError(f"ids has shape {tuple(ids.shape)}; expected (n, L), with one token at least")
        x = self.text.embed(ids, ids)
        with cache.step(len(self._layers)) as caches:
            for (layer, options), (own, _) in zip(self._layers, caches, strict=True):
                x = layer(x, cache=own, **options)
        return self.logits(self._normed(x[:, -1, :]))

    def _normed(self, x: Array) -> Array:
        return x if self.text.encoder.norm is None else self.text.encoder.norm(x)

    def states(self, ids: Sequence[Sequence[int]]) -> Array:
        """Return the hidden state of each token of texts, which are laid end to end, (sum of lengths, d)."""
        words, lengths = self.text.words, [len(text) for text in ids]
        tokens, positions = self.text.end_to_end(backend_of({"words": words}).xp, ids, device_of(words))
        return self.text(tokens, positions, mask=packed(lengths) if len(lengths) > 1 else None)

    def logits(self, states: Array) -> Array:
        """Return the logits of the token that follows each hidden state, (n, d) -> (n, vocabulary)."""
        return _tied_logits(states, self.text.words) if self.head is None else linear(states, self.head, None)

    @property
    def build(self) -> Callable[..., CausalModel]:
        """The function that makes such a model of the arrays of a file."""
        return build_causal_model


@Step
def _tied_logits(states: Array, words: Array) -> Array:
    return linear(states, backend_of({"words": words}).xp.matrix_transpose(words), None)


def build_causal_model(folder: Path, family: Family, file: WeightsFile, make: Callable[[Any], Array]) -> CausalModel:
    """Return the model that config.json describes, of arrays from ``file``. Raises ModelError for one that is not causal."""
    text, head = build_text(folder, family, file, make)
    if any(pattern.right != 0 for pattern in text.patterns):
        path = folder / "config.json"
        raise ModelError(f"{path}: the model sees later tokens too, so it cannot continue a text: read it with TextEncoder")
    return CausalModel(text, None if head is None else make(head().T))


def build_text(
    folder: Path, family: Family, file: WeightsFile, make: Callable[[Any], Array]
) -> tuple[TextModel, Callable[..., Any] | None]:
    """Return the text model, and a function to rows of its head (vocabulary, d), by default all, as a NumPy array.

    None: the head's weights are those of the words, as where the file has no lm_head.weight, unless config.json says that
    tie_word_embeddings is false.
    """
    path = folder / "config.json"
    config = Config(path, {"tie_word_embeddings": True, **read_json(path)})
    config.only("final_logit_softcapping", (None,))
    text = build_model(folder, family, file, make)
    file.prefix = ""  # the name of the head is whole
    if not file.has(HEAD) and config.flag("tie_word_embeddings"):
        return text, None
    return text, partial(file.take, HEAD, (config.size("vocab_size"), config.size(family.d_model)))
