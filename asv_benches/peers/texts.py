"""Sentence-transformers' work on texts, tokenization included, and a fine-tuning step of a text encoder."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

import mha_text as mt
from mha_conformance.bench.limits import MATRIX, Limit
from mha_conformance.bench.texts import Texts
from mha_conformance.bench.timing import Work, loaded

from .training import gradient_check, pulled_back
from .written import Pairs

SEED = 0
ROUNDINGS = 2000  # of the greatest number in a gradient


@dataclass(frozen=True)
class TextStep(Texts):
    """32 sentences, tokenization included; the gradient of their vectors is standard normal."""

    first: int | None = 32

    def d_vectors(self, width: int) -> np.ndarray:
        """Return the gradient of the vectors."""
        return np.random.default_rng(SEED).standard_normal((len(self.texts()), width), dtype=np.float32)

    def small(self) -> TextStep:
        """Return the same problem with few sentences."""
        return replace(self, every=100)

    @property
    def limit(self) -> Limit:
        """Three times the products of the vectors."""
        return Limit(MATRIX, 3 * super().limit.amount)

    def judge(self) -> Callable[[Any], None]:
        """Return a check of the gradients of three weights against those in float64."""
        import mha_core as mha

        encoder = mt.TextEncoder.from_pretrained(self.folder, backend="numpy", dtype="float64")
        _, pullback = mha.vjp(encoder, self.texts())
        return gradient_check(_compared(*pullback(self.d_vectors(encoder.dim).astype(np.float64))), ROUNDINGS)

    def ours(self, backend: str) -> Work:
        """Return the call of mha_core's encoder and of its pullback on a backend."""
        encoder = mt.TextEncoder.from_pretrained(self.folder, backend=backend)
        d_vectors = loaded(backend).from_numpy(self.d_vectors(encoder.dim))
        return pulled_back(backend, encoder, self.texts(), d_vectors, _compared)


COMPARED = {
    "words": "word_embeddings.weight",
    "encoder.layers.0.attention.w_q": "layer.0.attention.self.query.weight",
    "encoder.layers.5.feed_forward.w_2": "layer.5.output.dense.weight",
}
"""The weights whose gradients are compared, the first and the last that the loss reaches, and the ends of their other names."""


def _compared(d_encoder: Any, *_: Any) -> dict[str, Any]:
    arrays = d_encoder.model.arrays()
    return {name: arrays[name] for name in COMPARED}


def _pretrained(kind: str, folder: Path) -> Any:
    """Return the model of a folder on the CPU; ``kind``: its class in sentence-transformers."""
    import sentence_transformers
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    return getattr(sentence_transformers, kind)(str(folder), device="cpu", local_files_only=True)


def encoded(problem: Texts) -> Work:
    """Return the call of an encoder with its default settings: float32, padded batches of 32."""
    model, texts = _pretrained("SentenceTransformer", problem.folder), problem.texts()
    return Work(lambda: model.encode(texts, show_progress_bar=False), lambda vectors: vectors)


def predicted(problem: Pairs) -> Work:
    """Return the call of a cross-encoder with its default settings: float32, padded batches of 32."""
    model, pairs = _pretrained("CrossEncoder", problem.folder), problem.pairs()
    return Work(lambda: model.predict(pairs, show_progress_bar=False), lambda scores: scores)


def trained(problem: TextStep) -> Work:
    """Return the call of sentence-transformers' modules, one padded batch, and of torch's gradients."""
    import torch

    model = _pretrained("SentenceTransformer", problem.folder).eval()  # without dropout
    texts, weights = problem.texts(), dict(model.named_parameters())
    d_vectors = torch.from_numpy(problem.d_vectors(model[0].auto_model.config.hidden_size))

    def step() -> Any:
        vectors = model(model.tokenize(texts))["sentence_embedding"]
        return dict(zip(weights, torch.autograd.grad(vectors, weights.values(), d_vectors, allow_unused=True), strict=True))

    def read(gradients: Any) -> dict[str, np.ndarray]:
        named = {ours: next(x.numpy() for name, x in gradients.items() if name.endswith(end)) for ours, end in COMPARED.items()}
        return {name: x if name == "words" else x.T for name, x in named.items()}

    return Work(step, read)
