"""Pretrained cross-encoders: pairs of texts in, scores out, on any backend."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Self

from mha_core.shared import Array, LoadedBackend, backend_of, check, compute_dtype, integers, traced

from .batches import by_windows, check_iterable, warn_of_cut
from .chat import read_chat
from .classifier import Classifier
from .cross_encoder_files import CrossEncoderFiles
from .hints import PAIR_HINTS, hinted
from .logit_score import LogitScore
from .packing import in_order, sorted_batches
from .pretrained import Pretrained
from .scores import check_activation, scores
from .settings import Settings
from .tokens import PairTokens, Tokenizer, check_text


class RankedDocument(NamedTuple):
    """A document, and how well it answers a query."""

    corpus_id: int
    """Its place in the documents that were given, from 0."""
    score: float
    text: str | None = None
    """The document, if ``return_documents`` asks for it."""


@dataclass(frozen=True, eq=False)
class CrossEncoder(Pretrained):
    """A pretrained model that scores pairs of texts, such as a query and a document: a reranker.

    Families: BERT, RoBERTa, XLM-RoBERTa, CamemBERT, MPNet, DistilBERT, ELECTRA, ModernBERT, EuroBERT, NomicBERT, GTE, Jina 3,
    Qwen3 and Gemma 3, each with its head for sequence classification. Language models of Qwen3 and Gemma 3 score by the logits
    of answers, by default "yes" and "no", as Qwen3-Reranker does; the model's chat template makes a text of a pair.

    Pickling is that of ``TextEncoder``.

    >>> import mha_text as mt
    >>> model = mt.CrossEncoder.from_pretrained("path/to/ms-marco-MiniLM-L6-v2")  # doctest: +SKIP
    >>> model.predict([("how do swifts sleep?", "Swifts sleep on the wing."), ("a", "b")]).shape  # doctest: +SKIP
    (2,)
    """

    model: Classifier | LogitScore
    tokenizer: Tokenizer
    activation: str
    """The function that makes scores of logits, by default."""
    backend: LoadedBackend
    device: Any = None
    settings: Settings = field(default_factory=lambda: Settings(prompts={}))
    """The prompts, of config_sentence_transformers.json."""

    _hints = PAIR_HINTS

    @classmethod
    def _read(cls, folder: Path, backend: LoadedBackend, device: Any, make: Callable[[Any], Array]) -> Self:
        files = CrossEncoderFiles.read(folder)
        chat = read_chat(folder, files.by_sentence_transformers)
        model = files.read_model(make)
        text = model.text
        tokenizer = Tokenizer.read(folder, vocabulary=text.words.shape[0], max_positions=text.max_length, pairs=True, chat=chat)
        return cls(model, tokenizer, files.activation(model.num_labels), backend, device, files.settings())

    def __repr__(self) -> str:
        settings = f"labels={self.num_labels}, max_seq_length={self.max_seq_length}, activation={self.activation}"
        return f"CrossEncoder({settings})\nmodel: {self.model!r}"

    @property
    def num_labels(self) -> int:
        """The number of scores of a pair."""
        return self.model.num_labels

    @hinted
    def predict(
        self,
        pairs: Iterable[Sequence[str]],
        *,
        activation: str | None = None,
        prompt: str | None = None,
        prompt_name: str | None = None,
        progress: bool | None = None,
    ) -> Array:
        """Return the scores of pairs of texts, in float32, in the order given.

        Parameters
        ----------
        pairs : pairs of strings
            Any number of them, from any iterable; or one pair.
        activation : identity, sigmoid, softmax, tanh or relu; or None
            What makes scores of logits. None follows the model: sigmoid for one label and identity for several, unless its
            files name another.
        prompt : str, or None
            What is put in front of each first text, or is the system message if the model has a chat template.
        prompt_name : str, or None
            The name of one of the model's prompts (``settings.prompts``); without either, its default, if it has one.
        progress : bool, or None
            Whether to show a bar on standard error; None: on a terminal, once the work takes more than a second.

        Returns
        -------
        array (n,), or (n, labels) of a model with several labels; without its first axis for one pair

        Raises
        ------
        TypeError
            If an item is not a pair of strings, or ``prompt`` is no string; for keywords of sentence-transformers, with what to
            write instead.
        ValueError
            If an item is not of length 2; for an unknown activation, softmax of one label, an unknown ``prompt_name``, and
            ``prompt`` and ``prompt_name`` together; ModelError if the chat template cannot be used for a pair.

        Warns
        -----
        TruncationWarning
            Once, if pairs are longer than ``max_seq_length``.
        """
        every, is_one = _pairs(pairs)
        result = self._predict(every, activation, self.settings.prompt(prompt, prompt_name), progress)
        return result[0, ...] if is_one else result

    @hinted
    def rank(
        self,
        query: str,
        documents: Iterable[str],
        top_k: int | None = None,
        *,
        return_documents: bool = False,
        activation: str | None = None,
        prompt: str | None = None,
        prompt_name: str | None = None,
        progress: bool | None = None,
    ) -> list[RankedDocument]:
        """Return the documents in descending order of their scores with the query; equal scores in the order given.

        Parameters
        ----------
        query : str
        documents : strings
        top_k : int, or None
            How many to return; None: all.
        return_documents : bool
            Whether results contain the documents.
        activation, prompt, prompt_name, progress : see ``predict``

        Raises
        ------
        TypeError
            If ``query`` or a document is not a string, or ``documents`` is one string; for keywords of sentence-transformers.
        ValueError
            If the model has several labels, or ``top_k`` is below 1; for an unknown ``prompt_name``.

        Warns
        -----
        TruncationWarning
            Once, if pairs are longer than ``max_seq_length``.
        """
        if self.num_labels != 1:
            raise ValueError(f"the model has {self.num_labels} labels; rank needs a model with one: use predict")
        most = None if top_k is None else check.integer("top_k", top_k, 1)
        check_text("query", query)
        check_iterable("documents", documents, "a list of strings: write [document]")
        texts = list(documents)
        for at, text in enumerate(texts):
            check_text(f"documents[{at}]", text)
        pairs = [(query, text) for text in texts]
        result = self._predict(pairs, activation, self.settings.prompt(prompt, prompt_name), progress)
        values = self.backend.to_numpy(result).tolist()
        order = sorted(range(len(values)), key=lambda at: -values[at])[:most]
        return [RankedDocument(at, values[at], texts[at] if return_documents else None) for at in order]

    @hinted
    def __call__(self, pairs: Iterable[Sequence[str]], *, prompt: str | None = None, prompt_name: str | None = None) -> Array:
        """Return the logits of pairs of texts, in the dtype that the model computes in and with gradients, for training.

        ``predict(pairs, activation="identity")`` gives the same numbers without gradients, in less memory. Options, shapes,
        errors and warnings as there.
        """
        every, is_one = _pairs(pairs)
        tokens, cut = self.tokenizer.pairs(every, self.settings.prompt(prompt, prompt_name))
        warn_of_cut(cut, len(every), self.tokenizer, "pairs")
        order, batches = sorted_batches(tokens)
        if rows := [self._logits(batch) for batch in batches]:
            logits = in_order(backend_of({"logits": rows[0]}).xp, rows, order, self.device)  # the tape's, for gradients
        else:
            logits = self._rows(rows, self.num_labels, self.model.text.words.dtype)
        result = logits[:, 0] if self.num_labels == 1 else logits
        return result[0, ...] if is_one else result

    def vjp(self, pairs: Iterable[Sequence[str]], *, wrt: Callable[[str], bool] | None = None, **options: Any) -> Any:
        """Return the logits of pairs, and the pullback to the weights; see ``mha_core.vjp``."""
        return traced(self, (pairs,), options, wrt)

    def _predict(self, pairs: Sequence[tuple[str, str]], activation: str | None, prompt: str, progress: bool | None) -> Array:
        name = check_activation(self.activation if activation is None else activation)
        if name == "softmax" and self.num_labels == 1:
            raise ValueError("activation is 'softmax', but the model has one label, whose softmax is always 1")
        xp = self.backend.xp

        def tokenize(window: list[tuple[str, str]], before: int) -> tuple[list[PairTokens], int]:
            return self.tokenizer.pairs(window, prompt)

        join = partial(in_order, xp, device=self.device)
        parts = by_windows(self, pairs, tokenize, self._logits, join, progress, "pairs")
        logits = self._rows(parts, self.num_labels)
        wide = xp.astype(logits, compute_dtype(xp, logits.dtype), copy=False)
        return xp.astype(scores(xp, wide, name), xp.float32, copy=False)

    def _logits(self, pairs: Sequence[PairTokens]) -> Array:
        """Return the logits of pairs laid end to end in one matrix, without padding, (n, labels)."""
        xp, text = self.backend.xp, self.model.text
        tokens, positions = text.end_to_end(xp, [pair.ids for pair in pairs], self.device)
        types = None
        if text.token_types is not None and text.token_types.shape[0] > 1 and self.tokenizer.gives_type_ids:
            types = integers(xp, [kind for pair in pairs for kind in pair.type_ids], self.device)
        lengths, ends = [len(pair) for pair in pairs], [self.model.end(pair.ids) for pair in pairs]
        return self.model(tokens, positions, lengths, token_type_ids=types, ends=ends)


def _pairs(pairs: Iterable[Sequence[str]]) -> tuple[list[tuple[str, str]], bool]:
    """Return the pairs, and whether there was one pair instead of several. Raises TypeError or ValueError by name."""
    check_iterable("pairs", pairs, "pairs of strings: write [(query, document)]")
    every: list[Any] = list(pairs)
    is_one = bool(every) and isinstance(every[0], str | bytes)
    if is_one and len(every) != 2:
        raise TypeError(f"pairs is {len(every)} strings; expected pairs of strings: write [(query, document), ...]")
    named = {"pairs": every} if is_one else {f"pairs[{at}]": pair for at, pair in enumerate(every)}
    return [_pair(name, pair) for name, pair in named.items()], is_one


def _pair(name: str, pair: Any) -> tuple[str, str]:
    if isinstance(pair, str | bytes) or not isinstance(pair, Iterable):
        raise TypeError(f"{name} is {type(pair).__name__}; expected a pair of strings: write (query, document)")
    texts = tuple(pair)
    if len(texts) != 2:
        raise ValueError(f"{name} has {len(texts)} items; expected 2: (query, document)")
    for at, text in enumerate(texts):
        check_text(f"{name}[{at}]", text)
    return texts
