"""Pretrained cross-encoders: pairs of texts in, scores out, on any backend."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Self

from ..algebra.arrays import Array, compute_dtype, integers
from ..dispatch.backend import LoadedBackend
from ..dispatch.selection import backend_of, backend_without_arrays
from ..ops import check
from ..ops.vjp import traced
from .batches import warn_of_cut
from .chat import read_chat
from .classifier import Classifier
from .cross_encoder_files import CrossEncoderFiles
from .files import locate
from .hints import HINTS, hinted
from .logit_score import LogitScore
from .packing import computed, in_order, sorted_batches, windows
from .reading import read_again
from .saving import save_model
from .scores import check_activation, scores
from .settings import Settings
from .tokens import PairTokens, Tokenizer, check_text

_ACTIVATION = "write activation= with a name, such as 'sigmoid' or 'identity', in predict or rank"
_PER_CALL = "give it to predict or rank, which take it for each call"
_ONE_PROCESS = "one process uses all cores, leave it out"

_HINTS: Mapping[str, str] = {
    # predict and rank
    "batch_size": "pairs are packed by tokens, leave it out",
    "activation_fn": _ACTIVATION,
    "activation_fct": _ACTIVATION,
    "default_activation_function": _ACTIVATION,
    "apply_softmax": "write activation='softmax'",
    "convert_to_tensor": "scores are arrays of the backend: write from_pretrained(..., backend='torch')",
    "convert_to_numpy": "scores are arrays of the backend: write from_pretrained(..., backend='numpy')",
    "pool": _ONE_PROCESS,
    "chunk_size": _ONE_PROCESS,
    "num_workers": _ONE_PROCESS,
    # from_pretrained
    "max_length": "write max_seq_length into sentence_bert_config.json of the model's directory",
    "num_labels": "the model's config.json says how many labels it has",
    "automodel_args": "write dtype=, if that is what it sets",
    "prompt": _PER_CALL,
    "prompt_name": _PER_CALL,
    "prompts": "they are read from config_sentence_transformers.json; give predict a prompt=",
    "default_prompt_name": "it is read from config_sentence_transformers.json; give predict a prompt_name=",
    "processing_kwargs": "pairs are read as the model's files say; leave it out",
}


class RankedDocument(NamedTuple):
    """A document, and how well it answers a query."""

    corpus_id: int
    """Its place in the documents that were given, from 0."""
    score: float
    text: str | None = None
    """The document, if ``return_documents`` asks for it."""


@dataclass(frozen=True, eq=False)
class CrossEncoder:
    """A pretrained model that scores pairs of texts, such as a query and a document: a reranker.

    Families: BERT, RoBERTa, XLM-RoBERTa, CamemBERT, MPNet, DistilBERT, ELECTRA, ModernBERT, EuroBERT, NomicBERT, GTE, Jina 3,
    Qwen3 and Gemma 3, each with its head for sequence classification. Language models of Qwen3 and Gemma 3 score by the logits
    of answers, by default "yes" and "no", as Qwen3-Reranker does; the model's chat template makes a text of a pair.

    Pickling stores where the model was read from, or its arrays if they were changed since, as for ``TextEncoder``.

    >>> import mha_core as mha
    >>> model = mha.CrossEncoder.from_pretrained("path/to/ms-marco-MiniLM-L6-v2")  # doctest: +SKIP
    >>> model.predict([("how do swifts sleep?", "Swifts sleep on the wing."), ("a", "b")]).shape  # doctest: +SKIP
    (2,)
    """

    model: Classifier | LogitScore
    tokenizer: Tokenizer
    activation: str
    """What makes scores of logits, by default."""
    backend: LoadedBackend
    device: Any = None
    settings: Settings = field(default_factory=lambda: Settings(prompts={}))
    """The prompts, of config_sentence_transformers.json."""
    _read_from: tuple[str, str, Any, Any] | None = field(default=None, init=False)
    """Path or repository, backend, device and dtype; None for a model that was changed since, as by dataclasses.replace."""

    @classmethod
    @hinted(_HINTS, HINTS)
    def from_pretrained(
        cls,
        path_or_repo: str | Path,
        *,
        backend: str | None = None,
        device: Any = None,
        dtype: Any = None,
    ) -> Self:
        """Read a directory laid out as by transformers or sentence-transformers, or a repository through huggingface_hub.

        ``dtype``: the dtype to compute in, the backend's or its name; float32 by default.

        Raises ModelNotFound if there is no such model; ModelError that names a file which is missing, corrupt or unsupported,
        or does not fit the others, such as weights without a classification head; UnknownBackend and BackendUnavailable;
        TypeError for keywords of sentence-transformers, which says what to write instead.
        """
        loaded = backend_without_arrays(backend)
        folder = locate(path_or_repo)
        wanted = check.floating(loaded, dtype)
        files = CrossEncoderFiles.read(folder)
        chat = read_chat(folder, files.by_sentence_transformers)
        model = files.read_model(lambda array: loaded.xp.astype(loaded.from_numpy(array, device), wanted, copy=False))
        text = model.text
        tokenizer = Tokenizer.read(folder, vocabulary=text.words.shape[0], max_positions=text.max_length, pairs=True, chat=chat)
        found = cls(model, tokenizer, files.activation(model.num_labels), loaded, device, files.settings())
        source = folder.absolute() if Path(path_or_repo).expanduser() == folder else path_or_repo
        object.__setattr__(found, "_read_from", (str(source), loaded.name, device, dtype))
        return found

    def __reduce__(self) -> Any:
        if self._read_from is not None:
            return read_again, (CrossEncoder, *self._read_from)
        return CrossEncoder, (self.model, self.tokenizer, self.activation, self.backend, self.device, self.settings)

    def save_pretrained(self, path: str | Path) -> None:
        """Write a directory that ``from_pretrained``, sentence-transformers and transformers read, such as after fine-tuning.

        Files and errors as for ``TextEncoder.save_pretrained``.
        """
        save_model(self.model, self.tokenizer.path.parent, Path(path), build=self.model.build)

    def __repr__(self) -> str:
        settings = f"labels={self.num_labels}, max_seq_length={self.max_seq_length}, activation={self.activation}"
        return f"CrossEncoder({settings})\nmodel: {self.model!r}"

    @property
    def num_labels(self) -> int:
        """The number of scores of a pair."""
        return self.model.num_labels

    @property
    def max_seq_length(self) -> int:
        """The maximum number of tokens of a pair, or of the chat that a template makes of it.

        The rest is cut from the longer text, or before the end of the chat, with one warning that counts such pairs.
        """
        return self.tokenizer.max_seq_length

    @hinted(_HINTS, HINTS)
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
        found = self._predict(every, activation, self.settings.prompt(prompt, prompt_name), progress)
        return found[0, ...] if is_one else found

    @hinted(_HINTS, HINTS)
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
        if isinstance(documents, str | bytes):
            raise TypeError(f"documents is one {type(documents).__name__}; expected a list of strings: write [document]")
        texts = list(documents)
        for at, text in enumerate(texts):
            check_text(f"documents[{at}]", text)
        pairs = [(query, text) for text in texts]
        found = self._predict(pairs, activation, self.settings.prompt(prompt, prompt_name), progress)
        values = self.backend.to_numpy(found).tolist()
        order = sorted(range(len(values)), key=lambda at: -values[at])[:most]
        return [RankedDocument(at, values[at], texts[at] if return_documents else None) for at in order]

    @hinted(_HINTS, HINTS)
    def __call__(self, pairs: Iterable[Sequence[str]], *, prompt: str | None = None, prompt_name: str | None = None) -> Array:
        """Return the logits of pairs of texts, in the dtype that the model computes in and with gradients, for training.

        ``predict(pairs, activation="identity")`` gives the same numbers without gradients, in less memory. Options, shapes,
        errors and warnings as there.
        """
        every, is_one = _pairs(pairs)
        tokens, cut = self.tokenizer.pairs(every, self.settings.prompt(prompt, prompt_name))
        warn_of_cut(cut, len(every), self.tokenizer, "pairs")
        if not tokens:
            return self._nothing(self.model.text.words.dtype)
        order, batches = sorted_batches(tokens, _length)
        rows = [self._logits(batch) for batch in batches]
        logits = in_order(backend_of({"logits": rows[0]}).xp, rows, order, self.device)  # the tape's, if gradients are recorded
        found = logits[:, 0] if self.num_labels == 1 else logits
        return found[0, ...] if is_one else found

    def vjp(self, pairs: Iterable[Sequence[str]], *, wrt: Callable[[str], bool] | None = None, **options: Any) -> Any:
        """Return the logits of pairs, and the pullback to the weights; see ``mha_core.vjp``."""
        return traced(self, (pairs,), options, wrt)

    def _predict(self, pairs: Sequence[tuple[str, str]], activation: str | None, prompt: str, progress: bool | None) -> Array:
        from tqdm import tqdm

        name = check_activation(self.activation if activation is None else activation)
        if name == "softmax" and self.num_labels == 1:
            raise ValueError("activation is 'softmax', but the model has one label, whose softmax is always 1")
        xp, parts, cut = self.backend.xp, [], 0
        disable = None if progress is None else not progress
        with tqdm(total=len(pairs), unit=" pairs", disable=disable, delay=1.0 if progress is None else 0.0) as bar:
            for window in windows(pairs):
                tokens, cut_here = self.tokenizer.pairs(window, prompt)
                order, batches = sorted_batches(tokens, _length)
                parts.append(in_order(xp, computed(self.backend, self._logits, batches, bar.update), order, self.device))
                cut += cut_here
        warn_of_cut(cut, len(pairs), self.tokenizer, "pairs")
        if not parts:
            return self._nothing(xp.float32)
        logits = xp.concat(parts, axis=0)
        wide = xp.astype(logits, compute_dtype(xp, logits.dtype), copy=False)
        return xp.astype(scores(xp, wide, name), xp.float32, copy=False)

    def _nothing(self, dtype: Any) -> Array:
        shape = (0,) if self.num_labels == 1 else (0, self.num_labels)
        return self.backend.xp.zeros(shape, dtype=dtype, device=self.device)

    def _logits(self, pairs: Sequence[PairTokens]) -> Array:
        """Return the logits of pairs laid end to end in one matrix, without padding, (n, labels)."""
        xp, text = self.backend.xp, self.model.text
        tokens = integers(xp, (token for pair in pairs for token in pair.ids), self.device)
        positions = integers(xp, (at for pair in pairs for at in text.position_ids(pair.ids)), self.device)
        types = None
        if text.token_types is not None and text.token_types.shape[0] > 1 and self.tokenizer.gives_type_ids:
            types = integers(xp, (kind for pair in pairs for kind in pair.type_ids), self.device)
        lengths, ends = [_length(pair) for pair in pairs], [self.model.end(pair.ids) for pair in pairs]
        return self.model(tokens, positions, lengths, token_type_ids=types, ends=ends)


def _length(pair: PairTokens) -> int:
    return len(pair.ids)


def _pairs(pairs: Iterable[Sequence[str]]) -> tuple[list[tuple[str, str]], bool]:
    """Return the pairs, and whether there was one pair instead of several. Raises TypeError or ValueError by name."""
    if isinstance(pairs, str | bytes):
        raise TypeError(f"pairs is one {type(pairs).__name__}; expected pairs of strings: write [(query, document)]")
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
