"""The computation of a text encoder: token ids are packed into matrices, pooled, and put back in the order of their texts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, chain
from typing import TYPE_CHECKING, Any, Self

from mha_core import packed
from mha_core.shared import Array, Namespace, backend_of, compute_dtype

from .batches import by_windows, ids_of_texts
from .packing import in_order, places
from .pooling import unit
from .settings import OptionError

if TYPE_CHECKING:
    from .text_encoder import TextEncoder

Ids = Sequence[Sequence[int]]
"""The token ids of texts."""


@dataclass(frozen=True)
class Form:
    """The options of a call: the text before each text, and the form of the vectors."""

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
    tokenize = partial(ids_of_texts, encoder.tokenizer, form.prompt)
    join = partial(formed, encoder, dtype=encoder.backend.xp.float32, form=form)
    return by_windows(encoder, texts, tokenize, partial(pooled, encoder, skip=form.skip), join, progress)


def tokens_of_texts(encoder: TextEncoder, texts: Iterable[str], prompt: str, progress: bool | None) -> Iterator[Array]:
    """Yield the hidden states of each text's tokens, (L, d) in float32."""

    def join(batches: list[list[Array]], order: list[int]) -> list[Array]:
        rows = list(chain.from_iterable(batches))
        return [rows[at] for at in places(order)]

    tokenize = partial(ids_of_texts, encoder.tokenizer, prompt)
    return chain.from_iterable(by_windows(encoder, texts, tokenize, partial(_split, encoder), join, progress))


def pooled(encoder: TextEncoder, ids: Ids, skip: int) -> Array:
    """Return the vectors of texts, whose first ``skip`` tokens are not pooled; neither normalized nor cut."""
    xp, hidden = _hidden(encoder, ids)
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
    xp, hidden = _hidden(encoder, ids)
    hidden = xp.astype(hidden, xp.float32, copy=False)
    stops = accumulate(len(text) for text in ids)
    return [hidden[stop - len(text) : stop, :] for stop, text in zip(stops, ids, strict=True)]


def _hidden(encoder: TextEncoder, ids: Ids) -> tuple[Namespace, Array]:
    """Return the hidden states of texts laid end to end in one matrix, without padding, in at least float32.

    Their namespace comes first: it is the tape's, if gradients are recorded.
    """
    tokens, positions = encoder.model.end_to_end(encoder.backend.xp, ids, encoder.device)
    hidden = encoder.model(tokens, positions, mask=packed([len(text) for text in ids]))
    xp = backend_of({"hidden": hidden}).xp
    return xp, xp.astype(hidden, compute_dtype(xp, hidden.dtype), copy=False)
