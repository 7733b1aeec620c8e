"""Find the nearest texts to each text, by the cosine of their vectors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.text import Text

from ..algebra.arrays import Array, Namespace, device_of
from ..models.pooling import unit
from .tables import prose_console

_ROWS = 512  # texts that are compared with all others at once


def nearest(xp: Namespace, vectors: Array, k: int) -> Iterator[list[tuple[int, float]]]:
    """Yield for each row of (n, d) the ``k`` other rows with the greatest cosine, nearest first, as (row, cosine)."""
    vectors = unit(xp, vectors)
    count = vectors.shape[0]
    index = xp.arange(count, device=device_of(vectors))
    for start in range(0, count, _ROWS):
        rows = index[start : start + _ROWS]
        cosines = xp.matmul(vectors[start : start + _ROWS, :], xp.matrix_transpose(vectors))
        cosines = xp.where(rows[:, None] == index[None, :], -2.0, cosines)
        order = xp.argsort(-cosines, axis=-1)[:, : min(k, count - 1)]
        for row in range(order.shape[0]):
            others = [int(order[row, at]) for at in range(order.shape[1])]
            yield [(other, float(cosines[row, other])) for other in others]


def print_nearest(xp: Namespace, texts: Sequence[str], batches: Sequence[Array], k: int) -> None:
    """Print each text, and below it its neighbours with their cosines."""
    console = prose_console()
    for text, neighbours in zip(texts, nearest(xp, xp.concat(list(batches), axis=0), k), strict=True):
        console.print(Text(text, style="bold"))
        for other, cosine in neighbours:
            console.print(Text(f"  {cosine:.3f}  ", style="cyan") + Text(texts[other]))
