"""Semantic search: the vectors of a corpus that are nearest to each query, in blocks."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from mha_core.shared import Array, LoadedBackend, backend_of, device_of

from ..models.pooling import unit
from .stored import StoredVectors, stored_vectors

_BLOCK = 4096  # vectors that are compared with all queries at once


class Hit(NamedTuple):
    """A text of a corpus, and how near it is to a query."""

    id: Any
    """Its id; its number from 0 if the corpus has no ids."""
    score: float
    """The cosine of the two vectors."""


def semantic_search(queries: Array, corpus: Array | str | os.PathLike[str] | StoredVectors, top_k: int = 10) -> list[list[Hit]]:
    """Return the ``top_k`` texts of a corpus with the greatest cosine for each query, nearest first.

    The corpus is read in blocks of 4096 vectors, so the memory is that of one block and of ``top_k`` results for each query. Of
    texts with equal scores the earlier ones come first. A vector of zeros has cosine 0.

    >>> import numpy as np
    >>> import mha_text as mt
    >>> mt.semantic_search(np.asarray([[1.0, 0.0]]), np.asarray([[0.0, 1.0], [3.0, 4.0]]), top_k=1)
    [[Hit(id=1, score=0.6)]]

    Parameters
    ----------
    queries : array (q, d), or one vector (d,)
        Such as ``encoder.encode(texts)``, or of one text; the results of one vector are a list of one list, too.
    corpus : array (n, d), or path
        An array of the same library as ``queries``; or a .npy file, or folder, that ``mha encode`` wrote.
    top_k : int
        How many results each query has; all texts of a smaller corpus.

    Raises
    ------
    ValueError
        If shapes do not fit, or ``top_k`` is below 1.
    TypeError
        If arrays have no floating dtype, or their libraries differ.
    CorpusError, FileNotFoundError
        If a path holds no vectors.
    """
    if isinstance(top_k, bool) or not isinstance(top_k, int) or top_k < 1:
        raise ValueError(f"top_k is {top_k!r}; expected an int of at least 1")
    if isinstance(corpus, str | os.PathLike):
        corpus = stored_vectors(os.fspath(corpus))
    arrays = {"queries": queries} if isinstance(corpus, StoredVectors) else {"queries": queries, "corpus": corpus}
    backend = backend_of(arrays)
    xp = backend.xp
    if queries.ndim == 1:
        queries = arrays["queries"] = queries[None, :]
    for name, x in arrays.items():
        if not backend.is_floating(x.dtype):
            raise TypeError(f"{name} has dtype {x.dtype}; expected a floating dtype")
        if x.ndim != 2 or x.shape[1] != queries.shape[-1]:
            raise ValueError(f"{name} has shape {tuple(x.shape)}; expected ({'q' if x is queries else 'n'}, d), one d for both")
    if isinstance(corpus, StoredVectors) and corpus.dim != queries.shape[1]:
        raise ValueError(f"the vectors of corpus have {corpus.dim} numbers, those of queries {queries.shape[1]}")
    blocks = _on(backend, corpus, queries) if isinstance(corpus, StoredVectors) else _blocks_of_array(corpus)
    queries = unit(xp, queries)
    best = xp.zeros((queries.shape[0], 0), dtype=queries.dtype, device=device_of(queries))
    places = xp.zeros((queries.shape[0], 0), dtype=xp.int64, device=device_of(queries))
    names: dict[int, Any] = {}
    start = 0
    for ids, block in blocks:
        scores = xp.matmul(queries, xp.matrix_transpose(unit(xp, block)))
        here = xp.broadcast_to(xp.arange(start, start + block.shape[0], device=device_of(queries)), scores.shape)
        scores, here = xp.concat([best, scores], axis=1), xp.concat([places, xp.astype(here, xp.int64)], axis=1)
        order = xp.argsort(-scores, axis=-1, stable=True)[:, : min(top_k, scores.shape[1])]
        best, places = (xp.take_along_axis(x, order, axis=-1) for x in (scores, here))
        kept = {int(place) for place in backend.to_numpy(xp.reshape(places, (-1,)))}
        names = {place: ids[place - start] if place >= start else names[place] for place in kept}
        start += block.shape[0]
    rows = zip(backend.to_numpy(best).tolist(), backend.to_numpy(places).tolist(), strict=True)
    return [[Hit(names[place], score) for score, place in zip(*row, strict=True)] for row in rows]


def _blocks_of_array(corpus: Array) -> Iterator[tuple[Sequence[Any], Array]]:
    for start in range(0, corpus.shape[0], _BLOCK):
        block = corpus[start : min(start + _BLOCK, corpus.shape[0]), :]
        yield range(start, start + block.shape[0]), block


def _on(backend: LoadedBackend, stored: StoredVectors, queries: Array) -> Iterator[tuple[Sequence[Any], Array]]:
    for ids, block in stored.blocks():
        yield ids, backend.xp.astype(backend.from_numpy(block, device_of(queries)), queries.dtype, copy=False)
