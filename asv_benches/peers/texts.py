"""Peer for the text encoder: sentence-transformers, tokenization included."""

from __future__ import annotations

from mha_conformance.bench.texts import Texts
from mha_conformance.bench.timing import Work


def sentence_transformers(problem: Texts) -> Work:
    """Return the call with its default settings: float32, padded batches of 32."""
    from sentence_transformers import SentenceTransformer
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    model = SentenceTransformer(str(problem.folder), device="cpu", local_files_only=True)
    texts = problem.texts()
    return Work(lambda: model.encode(texts, show_progress_bar=False), lambda vectors: vectors)
