"""A fine-tuning step of a text encoder, and sentence-transformers' work for it: vectors, and the gradients of all weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

import mha_text as mt
from mha_conformance.bench.limits import MATRIX, Limit
from mha_conformance.bench.texts import Texts
from mha_conformance.bench.timing import Work, loaded
from mha_conformance.oracle.tolerance import UNIT_ROUNDOFF, assert_within

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
        exact = _some(pullback(self.d_vectors(encoder.dim).astype(np.float64))[0].model.arrays())

        def check(answer: Any) -> None:
            for name, found in answer.items():
                bound = ROUNDINGS * UNIT_ROUNDOFF["float32"] * np.abs(exact[name]).max()
                assert_within(f"d_{name}", found, exact[name], np.full(exact[name].shape, bound))

        return check

    def ours(self, backend: str) -> Work:
        """Return the call of mha_core's encoder and of its pullback on a backend."""
        import mha_core as mha

        library, texts = loaded(backend), self.texts()
        encoder = mt.TextEncoder.from_pretrained(self.folder, backend=backend)
        d_vectors = library.from_numpy(self.d_vectors(encoder.dim))

        def step() -> Any:
            _, pullback = mha.vjp(encoder, texts)
            return pullback(d_vectors)[0].model.arrays()

        def read(found: Any) -> dict[str, np.ndarray]:
            return {name: library.to_numpy(x) for name, x in _some(found).items()}

        return Work(step, read, library.record.synchronize)


def _some(arrays: dict[str, Any]) -> dict[str, Any]:
    """Return the gradients that are compared: of the first and of the last weights that the loss reaches."""
    return {name: arrays[name] for name in ("words", "encoder.layers.0.attention.w_q", "encoder.layers.5.feed_forward.w_2")}


def sentence_transformers_step(problem: TextStep) -> Work:
    """Return the call of sentence-transformers' modules, one padded batch, and of torch's gradients."""
    import torch
    from sentence_transformers import SentenceTransformer
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    model = SentenceTransformer(str(problem.folder), device="cpu", local_files_only=True).eval()  # without dropout
    texts, weights = problem.texts(), dict(model.named_parameters())
    d_vectors = torch.from_numpy(problem.d_vectors(model[0].auto_model.config.hidden_size))

    def step() -> Any:
        vectors = model(model.tokenize(texts))["sentence_embedding"]
        return dict(zip(weights, torch.autograd.grad(vectors, weights.values(), d_vectors, allow_unused=True), strict=True))

    def read(found: Any) -> dict[str, np.ndarray]:
        ends = {
            "words": "word_embeddings.weight",
            "encoder.layers.0.attention.w_q": "layer.0.attention.self.query.weight",
            "encoder.layers.5.feed_forward.w_2": "layer.5.output.dense.weight",
        }
        named = {ours: next(x for name, x in found.items() if name.endswith(end)).numpy() for ours, end in ends.items()}
        return {name: x if name == "words" else x.T for name, x in named.items()}

    return Work(step, read)
