"""Pretrained text encoders: texts in, vectors out, on any backend."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, Self

from ..algebra.arrays import Array, integers
from ..dispatch.backend import LoadedBackend
from ..dispatch.selection import backend_without_arrays
from ..ops import check
from ..ops.vjp import traced
from .batches import check_texts, warn_of_cut
from .checkpoint import read_model
from .dense import Dense
from .encoding import Form, formed, pooled, tokens_of_texts, vectors_of_texts
from .families import MODEL_TYPES
from .files import field as field_of
from .files import locate, one_of, read_json
from .hints import HINTS, hinted
from .modules import read_modules
from .packing import sorted_batches
from .pooling import Pooling
from .quantize import check_precision, quantize_embeddings
from .reading import read_again
from .saving import save_model
from .settings import Settings
from .similarity import similarity, similarity_pairwise
from .text_model import TextModel
from .tokens import Tokenizer, check_text


@dataclass(frozen=True, eq=False)
class TextEncoder:
    """A pretrained encoder with its tokenizer and pooling.

    Families: BERT, RoBERTa, XLM-RoBERTa, CamemBERT, MPNet, DistilBERT, ELECTRA, ModernBERT, NomicBERT, GTE, Jina 2 and 3,
    EuroBERT; and decoders used as encoders, Qwen3 and Gemma 3. Weights are read from one safetensors file or from shards.

    Pickling stores where the encoder was read from, or its arrays if they were changed since. A process that unpickles the
    former many times, such as a worker of Dask, reads the model once.

    >>> import mha_core as mha
    >>> encoder = mha.TextEncoder.from_pretrained("path/to/all-MiniLM-L6-v2")  # doctest: +SKIP
    >>> encoder.encode(["a text", "another"]).shape  # doctest: +SKIP
    (2, 384)
    """

    model: TextModel
    tokenizer: Tokenizer
    pooling: Pooling
    backend: LoadedBackend
    device: Any = None
    dense: tuple[Dense, ...] = ()
    """What is applied to pooled vectors, before they are normalized."""
    settings: Settings = field(default_factory=Settings)
    """Prompts, similarity and the length of vectors, as config_sentence_transformers.json has them."""
    _read_from: tuple[str, str, Any, Any] | None = field(default=None, init=False)
    """Path or repository, backend, device and dtype; None for an encoder that was changed since, as by dataclasses.replace."""

    @classmethod
    @hinted(HINTS)
    def from_pretrained(
        cls, path_or_repo: str | Path, *, backend: str | None = None, device: Any = None, dtype: Any = None
    ) -> Self:
        """Read a directory laid out as by sentence-transformers, or a repository through huggingface_hub.

        ``dtype``: the dtype to compute in, the backend's or its name; float32 by default.

        Raises ModelNotFound if there is no such model; ModelError that names a file which is missing, corrupt or unsupported,
        or does not fit the others; UnknownBackend and BackendUnavailable.
        """
        loaded = backend_without_arrays(backend)
        folder = locate(path_or_repo)
        wanted = check.floating(loaded, dtype)

        def make(array: Any) -> Array:
            return loaded.xp.astype(loaded.from_numpy(array, device), wanted, copy=False)

        path = folder / "config.json"
        kind = one_of(field_of(read_json(path), path, "model_type", str), MODEL_TYPES, path, "model_type")
        modules, settings = read_modules(folder), Settings.read(folder)
        model = read_model(folder, MODEL_TYPES[kind], make)
        tokenizer = Tokenizer.read(folder, vocabulary=model.words.shape[0], max_positions=model.max_length)
        encoder = cls(model, tokenizer, modules.pooling, loaded, device, settings=settings)
        for where in modules.dense:
            encoder = replace(encoder, dense=(*encoder.dense, Dense.read(folder / where, encoder.width, make)))
        source = folder.absolute() if Path(path_or_repo).expanduser() == folder else path_or_repo
        object.__setattr__(encoder, "_read_from", (str(source), loaded.name, device, dtype))
        return encoder

    def __reduce__(self) -> Any:
        if self._read_from is not None:
            return read_again, (TextEncoder, *self._read_from)
        return TextEncoder, tuple(getattr(self, each.name) for each in fields(self) if each.init)

    def save_pretrained(self, path: str | Path) -> None:
        """Write a directory that ``from_pretrained``, sentence-transformers and transformers read, such as after fine-tuning.

        Weights are in the model's own file format and names, in float32, or float16 for such a model. Tokenizer, settings and
        pooling are those of the directory that the encoder was read from; so are weights that the encoder does not use, such as
        a pooler's.

        Raises FileExistsError if ``path`` exists and is not an empty directory; ModelError if the directory that the encoder
        was read from is gone; TypeError if it was not read from one.
        """
        save_model(self.model, self.tokenizer.path.parent, Path(path), dense=self.dense)

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
    def max_seq_length(self) -> int:
        """The maximum number of tokens of a text; the rest is cut, with one warning that counts such texts."""
        return self.tokenizer.max_seq_length

    @property
    def similarity_fn_name(self) -> str:
        """The similarity that the model was trained for, one of cosine, dot, euclidean and manhattan."""
        return self.settings.similarity_fn_name

    @hinted(HINTS)
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
        check_texts(every)
        check_precision(precision)
        before = self.settings.prompt(prompt, prompt_name)
        found: Any
        if output == "vectors":
            form = Form.of(self, before, truncate_dim, normalize)
            found = quantize_embeddings(self._joined(vectors_of_texts(self, every, form, progress), form.dim), precision)
        elif output == "tokens":
            if (normalize, truncate_dim, precision) != (None, None, "float32"):
                raise ValueError("normalize, truncate_dim and precision are for vectors of texts; leave them out for tokens")
            found = list(tokens_of_texts(self, every, before, progress))
        else:
            raise ValueError(f"output is {output!r}; expected vectors or tokens")
        return found[0] if isinstance(texts, str) else found

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

    @hinted(HINTS)
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
        check_texts(texts)
        every = list(texts)
        for at, text in enumerate(every):
            check_text(f"texts[{at}]", text)
        form = Form.of(self, self.settings.prompt(prompt, prompt_name), truncate_dim, normalize)
        ids, cut = self.tokenizer([form.prompt + text for text in every])
        warn_of_cut(cut, len(every), self.tokenizer)
        if not ids:
            return self.backend.xp.zeros((0, form.dim), dtype=self.model.words.dtype, device=self.device)
        order, batches = sorted_batches(ids)
        found = [pooled(self, batch, form.skip) for batch in batches]
        return formed(self, found, order, self.model.words.dtype, form)

    def vjp(self, texts: Iterable[str], *, wrt: Callable[[str], bool] | None = None, **options: Any) -> Any:
        """Return the vectors of texts, and the pullback to the weights; see ``mha_core.vjp``."""
        return traced(self, (texts,), options, wrt)

    @hinted(HINTS)
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
        check_texts(texts)
        form = Form.of(self, self.settings.prompt(prompt, prompt_name), truncate_dim, normalize)
        return vectors_of_texts(self, texts, form, progress)

    @hinted(HINTS)
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
            return self._joined([], form.dim)
        order, batches = sorted_batches(ids)
        found = list(self.backend.parallel(partial(pooled, self, skip=form.skip), batches))
        return formed(self, found, order, self.backend.xp.float32, form)

    def attention_maps(self, text: str) -> tuple[Array, list[str]]:
        """Return the attention weights (layers, heads, L, L), and the L tokens of the text, special ones included.

        Tokens are spelled as in the vocabulary (##ed, ▁the); tokens of bytes, such as RoBERTa's, are decoded to letters.

        Raises TypeError if ``text`` is not a string. Warns with TruncationWarning if it is longer than ``max_seq_length``.
        """
        xp = self.backend.xp
        check_text("text", text)
        (ids,), cut = self.tokenizer([text])
        warn_of_cut(cut, 1, self.tokenizer)
        tokens = integers(xp, ids, self.device)
        maps = self.model.attention_maps(tokens, integers(xp, self.model.position_ids(ids), self.device))
        return xp.stack(maps), self.tokenizer.tokens(ids)

    def _joined(self, parts: Iterable[Array], dim: int) -> Array:
        """Return the vectors of all windows; none have shape (0, dim)."""
        every, xp = list(parts), self.backend.xp
        if not every:
            return xp.zeros((0, dim), dtype=xp.float32, device=self.device)
        return every[0] if len(every) == 1 else xp.concat(every, axis=0)
