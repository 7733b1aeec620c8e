"""``mha search``: the texts of an encoded corpus that are nearest to each query."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.text import Text

from mha_core.cli.tables import prose_console

from ..corpus.errors import CorpusError, shortened
from ..corpus.rows import Columns
from ..corpus.search import Hit, semantic_search
from ..corpus.sources import FORMATS, Source, find, numbered_rows, whole
from ..corpus.stored import stored_vectors
from ..models.files import ModelError
from ..models.text_encoder import TextEncoder


def run(
    queries: Sequence[str],
    corpus: Path,
    model: Callable[[], TextEncoder],
    top_k: int,
    texts: Sequence[Path],
    column: str | None,
    *,
    as_json: bool,
    truncate_dim: int | None,
    **options: Any,
) -> None:
    """Print the nearest texts to each query; ids alone if no files of texts are given.

    ``options`` are those of ``TextEncoder.encode_query``.
    """
    stored = stored_vectors(corpus)
    columns = Columns(column or stored.columns.text, stored.columns.id)
    sources = find(texts, columns) if texts else []
    encoder = model()
    vectors = encoder.encode_query(queries, truncate_dim=truncate_dim or stored.truncate_dim, **options)
    if vectors.shape[1] != stored.dim:
        cut = "" if encoder.width < stored.dim else f", or they were cut: add --truncate-dim {stored.dim}"
        raise CorpusError(
            f"the vectors of {corpus} have {stored.dim} numbers, those of the model {vectors.shape[1]}: "
            f"another model made them{cut}"
        )
    if not all(map(math.isfinite, encoder.backend.to_numpy(vectors).ravel().tolist())):
        raise ModelError("the vectors of the queries have NaN or infinity: the model's weights or its dtype are at fault")
    results = semantic_search(vectors, stored, top_k)
    ids = {hit.id for hits in results for hit in hits}
    known = _texts_of(ids, sources, columns, corpus, stored.rows) if sources else {}
    show_hits("query", zip(queries, results, strict=True), known, as_json=as_json)
    if ids and not (sources or as_json):
        prose_console(stderr=True).print("to print the texts too, name the files that were encoded: --texts FILE")


def _texts_of(ids: Collection[Any], sources: Sequence[Source], columns: Columns, corpus: Path, count: int) -> dict[Any, str]:
    """Return the texts with these ids. Raises CorpusError unless the files have ``count`` rows, and all the ids."""
    texts, at = {}, -1
    for at, (_, _, row) in enumerate(numbered_rows(map(whole, sources), columns)):
        id = at if columns.id is None else row.id
        if id in ids and not row.reason:
            texts[id] = row.text
    files, has = (str(sources[0].path), "has") if len(sources) == 1 else (f"the {len(sources)} files of --texts", "have")
    remedy = "give --texts the files that were encoded, in the same order"
    if at + 1 != count:
        what, unit = "rows" if corpus.is_dir() else "vectors", f"{FORMATS[sources[0].format].unit}{'s' * (at != 0)}"
        raise CorpusError(f"{corpus} has {count} {what}, but {files} {has} {at + 1} {unit}: {remedy}")
    for id in ids:
        if id not in texts:
            raise CorpusError(f"{corpus} has a vector for {shortened(repr(id))}, but {files} {has} no text for it: {remedy}")
    return texts


def show_hits(
    kind: str, results: Iterable[tuple[str, Sequence[Hit]]], texts: Mapping[Any, str], *, as_json: bool, with_ids: bool = True
) -> None:
    """Print each query, and below it its hits with their texts, where they are known; or a JSON object for each query."""
    console = prose_console()
    for query, hits in results:
        if as_json:
            known = [{"text": texts[hit.id]} if hit.id in texts else {} for hit in hits]
            records = [{"id": hit.id, "score": round(hit.score, 6), **text} for hit, text in zip(hits, known, strict=True)]
            print(json.dumps({kind: query, "hits": records}, allow_nan=False))
            continue
        console.print(Text(query, style="bold"))
        for hit in hits:
            line = f"{hit.id}  {texts.get(hit.id, '')}".rstrip() if with_ids else texts[hit.id]
            console.print(Text(f"  {hit.score:.3f}  ", style="cyan") + Text(line))
