"""Find the nearest texts to each text, by the cosine of their vectors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mha_core.cli.tables import prose_console
from mha_core.shared import Array, Namespace

from ..corpus.search import Hit, semantic_search
from .search import show_hits

_ROWS = 512  # texts that are compared with all others at once


def nearest(vectors: Array, k: int) -> Iterator[list[Hit]]:
    """Yield for each row of (n, d) the ``k`` other rows with the greatest cosine, nearest first."""
    for start in range(0, vectors.shape[0], _ROWS):
        block = vectors[start : min(start + _ROWS, vectors.shape[0]), :]
        for at, hits in enumerate(semantic_search(block, vectors, k + 1), start):
            yield [hit for hit in hits if hit.id != at][:k]  # of more than k equal texts, hits may lack the text itself


def show_nearest(xp: Namespace, texts: Sequence[str], batches: Sequence[Array], *, count: int, as_json: bool) -> None:
    """Print each text, and below it its ``count`` nearest texts with their cosines; or a JSON object for each text.

    Of one text, standard error says why there is none.
    """
    results = zip(texts, nearest(xp.concat(list(batches), axis=0), count), strict=True)
    show_hits("text", results, dict(enumerate(texts)), as_json=as_json, with_ids=False)
    if len(texts) == 1:
        prose_console(stderr=True).print("there is one text, and no other to compare it with: give more FILEs or --text")
