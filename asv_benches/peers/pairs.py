"""Peer for the cross-encoder: sentence-transformers' predict, tokenization included."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

import mha_text as mt
from mha_conformance.bench import plain_numpy
from mha_conformance.bench.limits import MATRIX, Limit
from mha_conformance.bench.texts import Texts
from mha_conformance.bench.timing import Work, loaded, on
from mha_conformance.oracle.tolerance import assert_within

from .texts import pretrained
from .written import BUILD, TOKENIZER, copy_files, once

BOUND = 1e-5  # of a score between 0 and 1
SEED = 0
WRITTEN = BUILD / "cross-encoder"
"""Folder of the model: all-MiniLM-L6-v2 as a BertForSequenceClassification with a random head."""


@dataclass(frozen=True)
class Pairs(Texts):
    """256 pairs: four sentences as queries, each with 64 of the texts as documents, four of them paragraphs."""

    def pairs(self) -> list[tuple[str, str]]:
        """Return the pairs."""
        texts = super().texts()
        return [(query, document) for query in texts[:240:60] for document in texts[::4]]

    def small(self) -> Pairs:
        """Return the same problem with few pairs."""
        return replace(self, every=32)

    @property
    def folder(self) -> Path:
        """The model's folder, which is written if it is not there."""
        source = super().folder
        return once(WRITTEN, lambda folder: _write(source, folder))

    @property
    def limit(self) -> Limit:
        """The matrix products for all tokens, including special tokens and excluding padding, without those of the head."""
        encoder = plain_numpy.TextEncoder(super().folder)
        lengths = [len(encoder.tokenizer.encode(*pair).ids) for pair in self.pairs()]
        return Limit(MATRIX, encoder.operations(lengths))

    def judge(self) -> Callable[[Any], None]:
        """Return a check of all scores against those of mha_core in float64; the peer's are checked too."""

        exact = mt.CrossEncoder.from_pretrained(self.folder, backend="numpy", dtype="float64").predict(self.pairs())
        bound = np.full(exact.shape, BOUND)
        return lambda answer: assert_within("cross-encoder", answer, exact, bound)

    def ours(self, backend: str) -> Work:
        """Return the call of ``mha_text.CrossEncoder`` on a backend."""

        model = mt.CrossEncoder.from_pretrained(self.folder, backend=backend)
        pairs = self.pairs()
        return on(loaded(backend), lambda: model.predict(pairs, progress=False))


def sentence_transformers(problem: Pairs) -> Work:
    """Return the call with its default settings: float32, padded batches of 32."""
    model, pairs = pretrained("CrossEncoder", problem.folder), problem.pairs()
    return Work(lambda: model.predict(pairs, show_progress_bar=False), lambda scores: scores)


def _write(source: Path, folder: Path) -> None:
    """Write the model."""
    from safetensors.numpy import load_file, save_file

    config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    config |= {"architectures": ["BertForSequenceClassification"], "id2label": {"0": "LABEL_0"}}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    copy_files(source, folder, TOKENIZER)
    weights = {f"bert.{name}": x for name, x in load_file(source / "model.safetensors").items()}
    width = int(config["hidden_size"])
    weights["classifier.weight"] = np.random.default_rng(SEED).standard_normal((1, width), dtype=np.float32) / 8
    weights["classifier.bias"] = np.zeros(1, dtype=np.float32)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
