"""Find the nearest texts to each text, by the cosine of their vectors."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from rich.text import Text

from mha_core.cli.tables import prose_console
from mha_core.shared import Array, Namespace, device_of

from ..models.pooling import unit

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
            places = [int(order[row, at]) for at in range(order.shape[1])]
            yield [(place, float(cosines[row, place])) for place in places]


def show_nearest(xp: Namespace, texts: Sequence[str], batches: Sequence[Array], *, count: int, as_json: bool) -> None:
    """Print each text, and below it its ``count`` nearest texts with their cosines; or a JSON object for each text."""
    rows = zip(texts, nearest(xp, xp.concat(list(batches), axis=0), count), strict=True)
    if as_json:
        for text, neighbours in rows:
            hits = [{"id": other, "score": round(cosine, 6), "text": texts[other]} for other, cosine in neighbours]
            print(json.dumps({"text": text, "hits": hits}))
        return
    console = prose_console()
    for text, neighbours in rows:
        console.print(Text(text, style="bold"))
        for other, cosine in neighbours:
            console.print(Text(f"  {cosine:.3f}  ", style="cyan") + Text(texts[other]))
