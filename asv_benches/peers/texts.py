"""Peer for the text encoder: sentence-transformers, tokenization included."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mha_conformance.bench.texts import Texts
from mha_conformance.bench.timing import Work


def pretrained(kind: str, folder: Path) -> Any:
    """Return the model of a folder on the CPU; ``kind``: its class in sentence-transformers."""
    import sentence_transformers
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    return getattr(sentence_transformers, kind)(str(folder), device="cpu", local_files_only=True)


def sentence_transformers(problem: Texts) -> Work:
    """Return the call with its default settings: float32, padded batches of 32."""
    model, texts = pretrained("SentenceTransformer", problem.folder), problem.texts()
    return Work(lambda: model.encode(texts, show_progress_bar=False), lambda vectors: vectors)
