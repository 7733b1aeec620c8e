"""Pretrained text encoders: texts in, vectors out, on any backend."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Self

from mha_core.shared import Array, LoadedBackend, traced

from .batches import check_iterable, ids_of_texts, warn_of_cut
from .checkpoint import read_model
from .dense import Dense
from .encoding import Form, formed, pooled, tokens_of_texts, vectors_of_texts
from .families import MODEL_TYPES
from .files import model_type
from .hints import hinted
from .modules import read_modules
from .packing import sorted_batches
from .pooling import Pooling
from .pretrained import Pretrained
from .quantize import check_precision, quantize_embeddings
from .settings import Settings
from .similarity import similarity, similarity_pairwise
from .text_model import TextModel
from .tokens import Tokenizer, check_text

_TEXTS = "a list of strings: write [text]"


@dataclass(frozen=True, eq=False)
class TextEncoder(Pretrained):
    """A pretrained encoder with its tokenizer and pooling.

    Families: BERT, RoBERTa, XLM-RoBERTa, CamemBERT, MPNet, DistilBERT, ELECTRA, ModernBERT, NomicBERT, GTE, Jina 2 and 3,
    EuroBERT; and decoders used as encoders, Qwen3 and Gemma 3. Weights are read from one safetensors file or from shards.

    Pickling stores where the encoder was read from, or its arrays if they were changed since. A process that unpickles the
    former many times, such as a worker of Dask, reads the model once.

    >>> import mha_text as mt
    >>> encoder = mt.TextEncoder.from_pretrained("path/to/all-MiniLM-L6-v2")  # doctest: +SKIP
    >>> encoder.encode(["a text", "another"]).shape  # doctest: +SKIP
    (2, 384)
    """

    model: TextModel
    tokenizer: Tokenizer
    pooling: Pooling
    backend: LoadedBackend
    device: Any = None
    dense: tuple[Dense, ...] = ()
    """The maps of pooled vectors, before they are normalized."""
    settings: Settings = field(default_factory=Settings)
    """Prompts, similarity and the length of vectors, as config_sentence_transformers.json has them."""

    @classmethod
    def _read(cls, folder: Path, backend: LoadedBackend, device: Any, make: Callable[[Any], Array]) -> Self:
        families = MODEL_TYPES[model_type(folder, MODEL_TYPES)]
        (pooling, dense), settings = read_modules(folder), Settings.read(folder)
        model = read_model(folder, families, make)
        tokenizer = Tokenizer.read(folder, vocabulary=model.words.shape[0], max_positions=model.max_length)
        encoder = cls(model, tokenizer, pooling, backend, device, settings=settings)
        for where in dense:
            encoder = replace(encoder, dense=(*encoder.dense, Dense.read(folder / where, encoder.width, make)))
        return encoder

    def __repr__(self) -> str:
        pooling = f"pooling={'+'.join(self.pooling.modes)}, normalize={self.pooling.normalize}"
        dense = f", dense={len(self.dense)}" if self.dense else ""
        return f"TextEncoder(dim={self.dim}, max_seq_length={self.max_seq_length}, {pooling}{dense})\nmodel: {self.model!r}"

    @property
    def width(self) -> int:
        """The number of features of a vector that is not cut."""
        return self.dense[-1].width if self.dense else self.model.words.shape[1] * len(self.pooling.modes)

    @property
    def dim(self) -> int:
        """The number of features of a vector, which is ``width`` unless the model's settings have a ``truncate_dim``."""
        return self.width if self.settings.truncate_dim is None else min(self.width, self.settings.truncate_dim)

    @property
    def similarity_fn_name(self) -> str:
        """The similarity that the model was trained for, one of cosine, dot, euclidean and manhattan."""
        return self.settings.similarity_fn_name

    @hinted
    def encode(
        self,
        texts: str | Iterable[str],
        *,
        normalize: bool | None = None,
        progress: bool | None = None,
        prompt: str | None = None,
        prompt_name: str | None = None,
        truncate_dim: int | None = None,
        precision: str = "float32",
        output: str = "vectors",
    ) -> Any:
        """Return the vectors of texts, (n, d) in float32, in the order given; the vector of one string, (d,).

        Parameters
        ----------
        texts : strings, or one string
            Any number of them, from any iterable. "" is encoded as its special tokens.
        normalize : bool, or None
            Whether vectors have length 1; None follows the model's modules.json.
        progress : bool, or None
            Whether to show a bar on standard error; None: on a terminal, once the work takes more than a second.
        prompt : str, or None
            Is put in front of each text; None: the prompt that ``prompt_name`` names.
        prompt_name : str, or None
            The name of one of ``settings.prompts``; None: the model's default prompt, if it has one.
        truncate_dim : int, or None
            Only the first numbers of a vector are returned, as many as this; None follows the model's settings. They have
            length 1 together only with ``normalize=True``.
        precision : "float32", "int8", "uint8", "binary" or "ubinary"
            See ``quantize_embeddings``; the ranges of int8 and uint8 are those of these texts.
        output : "vectors" or "tokens"
            tokens: the hidden states of each text's tokens, special ones included, as a list of arrays (L, d).

        Raises
        ------
        TypeError
            If ``texts`` is bytes, or one of the texts is not a string.
        ValueError
            For a prompt that the model lacks, more numbers than its vectors have, and an unknown precision or output.

        Warns
        -----
        TruncationWarning
            Once, if texts are longer than ``max_seq_length``.
        """
        every = [texts] if isinstance(texts, str) else texts
        check_iterable("texts", every, _TEXTS)
        check_precision(precision)
        before = self.settings.prompt(prompt, prompt_name)
        result: Any
        if output == "vectors":
            form = Form.of(self, before, truncate_dim, normalize)
            result = quantize_embeddings(self._rows(vectors_of_texts(self, every, form, progress), form.dim), precision)
        elif output == "tokens":
            if (normalize, truncate_dim, precision) != (None, None, "float32"):
                raise ValueError("normalize, truncate_dim and precision are for vectors of texts; leave them out for tokens")
            result = list(tokens_of_texts(self, every, before, progress))
        else:
            raise ValueError(f"output is {output!r}; expected vectors or tokens")
        return result[0] if isinstance(texts, str) else result

    def encode_query(self, texts: str | Iterable[str], **options: Any) -> Any:
        """Return the vectors of queries, as ``encode`` with its ``options`` does.

        If no prompt is given, it is the model's prompt ``query``; without one there is none, whatever the default.
        """
        return self.encode(texts, **self.settings.with_prompt(("query",), options))

    def encode_document(self, texts: str | Iterable[str], **options: Any) -> Any:
        """Return the vectors of texts that are searched, as ``encode`` with its ``options`` does.

        If no prompt is given, it is the model's prompt ``document``; without one there is none, whatever the default.
        """
        return self.encode(texts, **self.settings.with_prompt(("document", "passage", "corpus"), options))

    def similarity(self, a: Array, b: Array, *, name: str | None = None) -> Array:
        """Return the similarity of every vector of ``a``, (n, d) or (d,), with every one of ``b``, (m, d) or (d,): (n, m).

        ``name``: cosine, dot, or the negative distances euclidean and manhattan; None follows the model's settings.

        Raises ValueError for an unknown name and shapes that do not fit; TypeError for arrays that are not floating.
        """
        return similarity(self.similarity_fn_name if name is None else name, a, b)

    def similarity_pairwise(self, a: Array, b: Array, *, name: str | None = None) -> Array:
        """Return the similarity of each vector of ``a``, (n, d), with the one of ``b`` in the same place: (n,).

        ``name`` and errors as in ``similarity``.
        """
        return similarity_pairwise(self.similarity_fn_name if name is None else name, a, b)

    @hinted
    def __call__(
        self,
        texts: Iterable[str],
        *,
        normalize: bool | None = None,
        prompt: str | None = None,
        prompt_name: str | None = None,
        truncate_dim: int | None = None,
    ) -> Array:
        """Return the vectors of texts, (n, d), in the dtype that the model computes in and with gradients, for training.

        ``encode`` gives the same numbers without gradients, in less memory. Options, errors and warnings as there.
        """
        check_iterable("texts", texts, _TEXTS)
        every, dtype = list(texts), self.model.words.dtype
        form = Form.of(self, self.settings.prompt(prompt, prompt_name), truncate_dim, normalize)
        ids, cut = ids_of_texts(self.tokenizer, form.prompt, every)
        warn_of_cut(cut, len(every), self.tokenizer)
        if not ids:
            return self._rows([], form.dim, dtype)
        order, batches = sorted_batches(ids)
        vectors = [pooled(self, batch, form.skip) for batch in batches]
        return formed(self, vectors, order, dtype, form)

    def vjp(self, texts: Iterable[str], *, wrt: Callable[[str], bool] | None = None, **options: Any) -> Any:
        """Return the vectors of texts, and the pullback to the weights; see ``mha_core.vjp``."""
        return traced(self, (texts,), options, wrt)

    @hinted
    def stream(
        self,
        texts: Iterable[str],
        *,
        normalize: bool | None = None,
        progress: bool | None = None,
        prompt: str | None = None,
        prompt_name: str | None = None,
        truncate_dim: int | None = None,
    ) -> Iterator[Array]:
        """Yield the vectors of ``encode`` for 4096 texts at a time, so that memory does not grow with their number."""
        check_iterable("texts", texts, _TEXTS)
        form = Form.of(self, self.settings.prompt(prompt, prompt_name), truncate_dim, normalize)
        return vectors_of_texts(self, texts, form, progress)

    @hinted
    def encode_ids(
        self,
        ids: Sequence[Sequence[int]],
        *,
        normalize: bool | None = None,
        truncate_dim: int | None = None,
        prompt: str = "",
    ) -> Array:
        """Return the vectors of texts that are tokenized, (n, d), as ``encode`` does.

        ``ids``: the token ids of each text, with special tokens, as ``tokenizer(texts)`` returns them. ``prompt``: that with
        which the texts begin, for a model that does not pool it. On NumPy the bits do not depend on the number of threads, even
        for a few texts, for which ``encode`` would use all cores.
        """
        form = Form.of(self, prompt, truncate_dim, normalize)
        if not ids:
            return self._rows([], form.dim)
        order, batches = sorted_batches(ids)
        vectors = list(self.backend.parallel(partial(pooled, self, skip=form.skip), batches))
        return formed(self, vectors, order, self.backend.xp.float32, form)

    def attention_maps(self, text: str) -> tuple[Array, list[str]]:
        """Return the attention weights (layers, heads, L, L), and the L tokens of the text, special ones included.

        Tokens are spelled as in the vocabulary (##ed, ▁the); tokens of bytes, such as RoBERTa's, are decoded to letters.

        Raises TypeError if ``text`` is not a string. Warns with TruncationWarning if it is longer than ``max_seq_length``.
        """
        xp = self.backend.xp
        check_text("text", text)
        (ids,), cut = self.tokenizer([text])
        warn_of_cut(cut, 1, self.tokenizer)
        maps = self.model.attention_maps(*self.model.end_to_end(xp, [ids], self.device))
        return xp.stack(maps), self.tokenizer.tokens(ids)
