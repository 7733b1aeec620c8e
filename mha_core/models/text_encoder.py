"""Pretrained text encoders: texts in, vectors out, on any backend."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any, Self

from ..algebra.arrays import Array, compute_dtype, integers
from ..algebra.masks import packed
from ..dispatch.backend import LoadedBackend
from ..dispatch.selection import backend_of, backend_without_arrays
from ..ops import check
from ..ops.vjp import traced
from .checkpoint import read_model
from .families import MODEL_TYPES
from .files import field as field_of
from .files import locate, one_of, read_json, weights_path
from .pooling import Pooling, unit
from .saving import save_model
from .text_model import TextModel
from .tokens import Tokenizer

_WINDOW = 4096  # texts that are sorted by length together, and so the maximum number in memory
_TOKENS = 1024  # tokens in one matrix


class TruncationWarning(UserWarning):
    """Some texts were longer than the model's limit, and were cut."""


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
    _read_from: tuple[str, str, Any, Any] | None = field(default=None, init=False)
    """Path or repository, backend, device and dtype; None for an encoder that was changed since, as by dataclasses.replace."""

    @classmethod
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
        path = folder / "config.json"
        kind = one_of(field_of(read_json(path), path, "model_type", str), MODEL_TYPES, path, "model_type")
        pooling = Pooling.read(folder)
        model = read_model(
            folder, MODEL_TYPES[kind], lambda array: loaded.xp.astype(loaded.from_numpy(array, device), wanted, copy=False)
        )
        tokenizer = Tokenizer.read(folder, vocabulary=model.words.shape[0], max_positions=model.max_length)
        encoder = cls(model, tokenizer, pooling, loaded, device)
        source = folder.absolute() if Path(path_or_repo).expanduser() == folder else path_or_repo
        object.__setattr__(encoder, "_read_from", (str(source), loaded.name, device, dtype))
        return encoder

    def __reduce__(self) -> Any:
        if self._read_from is not None:
            return _read_again, self._read_from
        return TextEncoder, (self.model, self.tokenizer, self.pooling, self.backend, self.device)

    def save_pretrained(self, path: str | Path) -> None:
        """Write a directory that ``from_pretrained``, sentence-transformers and transformers read, such as after fine-tuning.

        Weights are in the model's own file format and names, in float32, or float16 for such a model. Tokenizer, settings and
        pooling are those of the directory that the encoder was read from; so are weights that the encoder does not use, such as
        a pooler's.

        Raises FileExistsError if ``path`` exists and is not an empty directory; ModelError if the directory that the encoder
        was read from is gone; TypeError if it was not read from one.
        """
        save_model(self.model, self.tokenizer.path.parent, Path(path))

    def __repr__(self) -> str:
        pooling = f"pooling={'+'.join(self.pooling.modes)}, normalize={self.pooling.normalize}"
        return f"TextEncoder(dim={self.dim}, max_seq_length={self.max_seq_length}, {pooling})\nmodel: {self.model!r}"

    @property
    def dim(self) -> int:
        """The number of features of a vector."""
        return self.model.words.shape[1] * len(self.pooling.modes)

    @property
    def max_seq_length(self) -> int:
        """The maximum number of tokens of a text; the rest is cut, with one warning that counts such texts."""
        return self.tokenizer.max_seq_length

    def encode(self, texts: Iterable[str], *, normalize: bool | None = None, progress: bool | None = None) -> Array:
        """Return the vectors of texts, (n, d) in float32, in the order given.

        Parameters
        ----------
        texts : strings
            Any number of them, from any iterable. "" is encoded as its special tokens.
        normalize : bool, or None
            Whether vectors have length 1; None follows the model's modules.json.
        progress : bool, or None
            Whether to show a bar on standard error; None: on a terminal, once the work takes more than a second.

        Raises
        ------
        TypeError
            If ``texts`` is one string, or one of the texts is not a string.

        Warns
        -----
        TruncationWarning
            Once, if texts are longer than ``max_seq_length``.
        """
        windows = list(self.stream(texts, normalize=normalize, progress=progress))
        xp = self.backend.xp
        if not windows:
            return xp.zeros((0, self.dim), dtype=xp.float32, device=self.device)
        return windows[0] if len(windows) == 1 else xp.concat(windows, axis=0)

    def __call__(self, texts: Iterable[str], *, normalize: bool | None = None) -> Array:
        """Return the vectors of texts, (n, d), in the dtype that the model computes in and with gradients, for training.

        ``encode`` gives the same numbers without gradients, in less memory. ``normalize``, errors and warnings as there.
        """
        _check_texts(texts)
        every = list(texts)
        for at, text in enumerate(every):
            _check_text(f"texts[{at}]", text)
        ids, cut = self.tokenizer(every)
        self._warn(cut, len(every), stacklevel=3)
        if not ids:
            return self.backend.xp.zeros((0, self.dim), dtype=self.model.words.dtype, device=self.device)
        order, batches = _sorted_batches(ids)
        return self._in_order([self._encode_packed(batch) for batch in batches], order, self.model.words.dtype, normalize)

    def vjp(self, texts: Iterable[str], *, wrt: Callable[[str], bool] | None = None, **options: Any) -> Any:
        """Return the vectors of texts, and the pullback to the weights; see ``mha_core.vjp``."""
        return traced(self, (texts,), options, wrt)

    def stream(self, texts: Iterable[str], *, normalize: bool | None = None, progress: bool | None = None) -> Iterator[Array]:
        """Yield the vectors of ``encode`` for 4096 texts at a time, so that memory does not grow with their number."""
        _check_texts(texts)
        return self._stream(texts, normalize, progress)

    def encode_ids(self, ids: Sequence[Sequence[int]], *, normalize: bool | None = None) -> Array:
        """Return the vectors of texts that are tokenized, (n, d), as ``encode`` does.

        ``ids``: the token ids of each text, with special tokens, as ``tokenizer(texts)`` returns them. On NumPy the bits do not
        depend on the number of threads, even for a few texts, for which ``encode`` would use all cores.
        """
        if not ids:
            xp = self.backend.xp
            return xp.zeros((0, self.dim), dtype=xp.float32, device=self.device)
        order, batches = _sorted_batches(ids)
        return self._in_order(
            list(self.backend.parallel(self._encode_packed, batches)), order, self.backend.xp.float32, normalize
        )

    def attention_maps(self, text: str) -> tuple[Array, list[str]]:
        """Return the attention weights (layers, heads, L, L), and the L tokens of the text, special ones included.

        Tokens are spelled as in the vocabulary (##ed, ▁the); tokens of bytes, such as RoBERTa's, are decoded to letters.

        Raises TypeError if ``text`` is not a string. Warns with TruncationWarning if it is longer than ``max_seq_length``.
        """
        xp = self.backend.xp
        _check_text("text", text)
        (ids,), cut = self.tokenizer([text])
        self._warn(cut, 1, stacklevel=3)
        tokens = integers(xp, ids, self.device)
        maps = self.model.attention_maps(tokens, integers(xp, self.model.position_ids(ids), self.device))
        return xp.stack(maps), self.tokenizer.tokens(ids)

    def _stream(self, texts: Iterable[str], normalize: bool | None, progress: bool | None) -> Iterator[Array]:
        from tqdm import tqdm

        total = len(texts) if isinstance(texts, Sized) else None
        disable = None if progress is None else not progress
        count = cut = 0
        with tqdm(total=total, unit=" texts", disable=disable, delay=1.0 if progress is None else 0.0) as bar:
            for window in _windows(texts):
                for at, text in enumerate(window, start=count):
                    _check_text(f"texts[{at}]", text)
                ids, cut_here = self.tokenizer(window)
                yield self._in_batches(ids, normalize, bar.update)
                count, cut = count + len(window), cut + cut_here
        self._warn(cut, count, stacklevel=4)

    def _warn(self, cut: int, count: int, *, stacklevel: int) -> None:
        if cut:
            message = f"{cut} of {count} texts are longer than {self.max_seq_length} tokens, and were cut there"
            warnings.warn(message, TruncationWarning, stacklevel=stacklevel)

    def _in_batches(self, ids: Sequence[Sequence[int]], normalize: bool | None, done: Callable[[int], Any]) -> Array:
        """Return the vectors of texts; ``done`` is told how many are finished."""
        order, batches = _sorted_batches(ids)
        compute = map if len(batches) == 1 else self.backend.parallel  # a single batch may use all cores by itself
        encoded = []
        for vectors in compute(self._encode_packed, batches):
            encoded.append(vectors)
            done(vectors.shape[0])
        return self._in_order(encoded, order, self.backend.xp.float32, normalize)

    def _in_order(self, batches: list[Array], order: list[int], dtype: Any, normalize: bool | None) -> Array:
        """Return the vectors of batches, put back from an order of texts to the one given."""
        xp = backend_of({"vectors": batches[0]}).xp  # the tape's, if gradients are recorded
        places = xp.asarray(sorted(range(len(order)), key=order.__getitem__), device=self.device)
        vectors = xp.take(xp.concat(batches, axis=0), places, axis=0)
        normalized = self.pooling.normalize if normalize is None else normalize
        return xp.astype(unit(xp, vectors) if normalized else vectors, dtype, copy=False)

    def _encode_packed(self, ids: Sequence[Sequence[int]]) -> Array:
        """Return the vectors of texts laid end to end in one matrix, without padding."""
        xp = self.backend.xp
        lengths = [len(text) for text in ids]
        tokens = integers(xp, (token for text in ids for token in text), self.device)
        positions = integers(xp, (at for text in ids for at in self.model.position_ids(text)), self.device)
        hidden = self.model(tokens, positions, mask=packed(lengths))
        xp, wide = backend_of({"hidden": hidden}).xp, compute_dtype(xp, hidden.dtype)
        return self.pooling(xp, xp.astype(hidden, wide, copy=False), lengths)


_unpickling = threading.Lock()


def _read_again(path_or_repo: str, backend: str, device: Any, dtype: Any) -> TextEncoder:
    """Return a pickled encoder; the process reads it once, unless its file of weights changes."""
    weights = weights_path(locate(path_or_repo))
    with _unpickling:
        return _read_once(path_or_repo, backend, device, dtype, weights.stat().st_mtime_ns if weights.exists() else None)


@lru_cache(maxsize=4)
def _read_once(path_or_repo: str, backend: str, device: Any, dtype: Any, changed: int | None) -> TextEncoder:
    return TextEncoder.from_pretrained(path_or_repo, backend=backend, device=device, dtype=dtype)


def _sorted_batches(ids: Sequence[Sequence[int]]) -> tuple[list[int], list[list[Sequence[int]]]]:
    """Return the order of texts, longest first, and batches of them in this order, to be packed into matrices."""
    order = sorted(range(len(ids)), key=lambda at: -len(ids[at]))
    return order, list(_batches([ids[at] for at in order]))


def _check_texts(texts: object) -> None:
    if isinstance(texts, str | bytes):
        raise TypeError(f"texts is one {type(texts).__name__}; expected a list of strings: write [text]")


def _check_text(name: str, text: object) -> None:
    if not isinstance(text, str):
        raise TypeError(f"{name} is {type(text).__name__}; expected str")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UnicodeError(f"{name} cannot be written as UTF-8: {error.reason} at character {error.start}") from error


def _windows(texts: Iterable[str]) -> Iterator[list[str]]:
    rest = iter(texts)
    while window := list(islice(rest, _WINDOW)):
        yield window


def _batches(ids: Sequence[Sequence[int]]) -> Iterator[list[Sequence[int]]]:
    """Yield batches of adjacent texts, of up to ``_TOKENS`` tokens together; a longer text is a separate batch."""
    batch: list[Sequence[int]] = []
    tokens = 0
    for text in ids:
        if batch and tokens + len(text) > _TOKENS:
            yield batch
            batch, tokens = [], 0
        batch.append(text)
        tokens += len(text)
    if batch:
        yield batch
