"""How a text encoder computes: token ids are packed into matrices, pooled, and put back in the order of their texts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, chain
from typing import TYPE_CHECKING, Any, Self

from ..algebra.arrays import Array, compute_dtype, integers
from ..algebra.masks import packed
from ..dispatch.selection import backend_of
from .batches import tokenized
from .packing import computed, in_order, places, sorted_batches
from .pooling import unit
from .settings import OptionError

if TYPE_CHECKING:
    from .text_encoder import TextEncoder

Ids = Sequence[Sequence[int]]
"""The token ids of texts."""


@dataclass(frozen=True)
class Form:
    """What a call asks for: the text before each text, and the form of the vectors."""

    prompt: str
    skip: int
    """The number of a text's first tokens that are not pooled."""
    dim: int
    """The number of features that are kept."""
    normalize: bool | None
    """None: as the model does."""

    @classmethod
    def of(cls, encoder: TextEncoder, prompt: str, truncate_dim: int | None, normalize: bool | None) -> Self:
        """Raise OptionError if vectors have fewer numbers than ``truncate_dim``."""
        if truncate_dim is not None and (
            isinstance(truncate_dim, bool) or not isinstance(truncate_dim, int) or not 1 <= truncate_dim <= encoder.width
        ):
            raise OptionError(f"truncate_dim is {truncate_dim!r}; expected an int from 1 to {encoder.width}")
        skip = 0 if encoder.pooling.include_prompt or not prompt else encoder.tokenizer.length_of_prompt(prompt)
        return cls(prompt, skip, encoder.dim if truncate_dim is None else truncate_dim, normalize)


def vectors_of_texts(encoder: TextEncoder, texts: Iterable[str], form: Form, progress: bool | None) -> Iterator[Array]:
    """Yield the vectors of texts, (n, d) in float32, for one window of texts at a time."""

    def compute(ids: Ids, done: Callable[[int], Any]) -> Array:
        order, batches = sorted_batches(ids)
        found = computed(encoder.backend, partial(pooled, encoder, skip=form.skip), batches, done)
        return formed(encoder, found, order, encoder.backend.xp.float32, form)

    return tokenized(encoder.tokenizer, texts, form.prompt, progress, compute)


def tokens_of_texts(encoder: TextEncoder, texts: Iterable[str], prompt: str, progress: bool | None) -> Iterator[Array]:
    """Yield the hidden states of each text's tokens, (L, d) in float32."""

    def compute(ids: Ids, done: Callable[[int], Any]) -> list[Array]:
        order, batches = sorted_batches(ids)
        rows = list(chain.from_iterable(computed(encoder.backend, partial(_split, encoder), batches, done)))
        return [rows[at] for at in places(order)]

    return chain.from_iterable(tokenized(encoder.tokenizer, texts, prompt, progress, compute))


def pooled(encoder: TextEncoder, ids: Ids, skip: int) -> Array:
    """Return the vectors of texts, whose first ``skip`` tokens are not pooled; neither normalized nor cut."""
    hidden = _hidden(encoder, ids)
    xp = backend_of({"hidden": hidden}).xp
    vectors = encoder.pooling(xp, hidden, [len(text) for text in ids], skip)
    for dense in encoder.dense:
        vectors = xp.astype(dense(xp.astype(vectors, dense.w.dtype, copy=False)), hidden.dtype, copy=False)
    return vectors


def formed(encoder: TextEncoder, batches: list[Array], order: list[int], dtype: Any, form: Form) -> Array:
    """Return the vectors of batches, put back from an order of texts to the one given, in the form asked for."""
    xp = backend_of({"vectors": batches[0]}).xp  # the tape's, if gradients are recorded
    vectors = in_order(xp, batches, order, encoder.device)
    if form.normalize is None and encoder.pooling.normalize:  # the model's own modules come before the cut
        vectors = unit(xp, vectors)
    if form.dim < encoder.width:
        vectors = vectors[:, : form.dim]
    return xp.astype(unit(xp, vectors) if form.normalize else vectors, dtype, copy=False)


def _split(encoder: TextEncoder, ids: Ids) -> list[Array]:
    """Return the hidden states of each text, (L, d) in float32."""
    xp = encoder.backend.xp
    hidden = xp.astype(_hidden(encoder, ids), xp.float32, copy=False)
    stops = accumulate(len(text) for text in ids)
    return [hidden[stop - len(text) : stop, :] for stop, text in zip(stops, ids, strict=True)]


def _hidden(encoder: TextEncoder, ids: Ids) -> Array:
    """Return the hidden states of texts laid end to end in one matrix, without padding, in at least float32."""
    xp = encoder.backend.xp
    tokens = integers(xp, (token for text in ids for token in text), encoder.device)
    positions = integers(xp, (at for text in ids for at in encoder.model.position_ids(text)), encoder.device)
    hidden = encoder.model(tokens, positions, mask=packed([len(text) for text in ids]))
    xp = backend_of({"hidden": hidden}).xp
    return xp.astype(hidden, compute_dtype(xp, hidden.dtype), copy=False)
