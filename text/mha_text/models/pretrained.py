"""The base of pretrained models: they are read from a directory, written to one, and pickled as its path."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, Self

from mha_core.shared import Array, LoadedBackend, backend_without_arrays, check

from .files import digest_of_files, locate, stamps_of_files
from .hints import ATTRIBUTES, HINTS, hinted
from .saving import save_model
from .tokens import Tokenizer

_reading = threading.Lock()


class Pretrained:
    """A model with its tokenizer. Its classes are frozen dataclasses."""

    model: Any
    tokenizer: Tokenizer
    backend: LoadedBackend
    device: Any
    _hints: ClassVar[Mapping[str, str]] = HINTS
    """Hints for keywords of sentence-transformers."""
    _read_from: tuple[str, str, Any, Any, str | None] | None = None
    """Path or repository, backend, device, dtype and weights; None for a model that was changed since, as by replace."""
    _stamps: tuple[tuple[str, int, int], ...] = ()
    """The names, sizes and times of the files before they were read."""

    def __new__(cls, *parts: Any, **named: Any) -> Self:
        """Raise TypeError for the path of a model, which from_pretrained reads."""
        path = next((each for each in (*parts[:1], named.get("model_name_or_path")) if isinstance(each, str | Path)), None)
        if path is not None:
            name = cls.__name__
            raise TypeError(f"{name}() takes the parts of a model, not its path: write {name}.from_pretrained({str(path)!r})")
        return super().__new__(cls)

    def __getattr__(self, name: str) -> Any:
        """Say what to write for an attribute of sentence-transformers; only what is missing comes here."""
        kind = type(self).__name__
        missing = (
            f"{kind} has no {name}: {ATTRIBUTES[name]}" if name in ATTRIBUTES else f"{kind!r} object has no attribute {name!r}"
        )
        raise AttributeError(missing, name=name, obj=self)

    @classmethod
    @hinted
    def from_pretrained(
        cls,
        path_or_repo: str | Path,
        *,
        backend: str | None = None,
        device: Any = None,
        dtype: Any = None,
        weights: str | None = None,
    ) -> Self:
        """Read a directory laid out as by sentence-transformers or transformers, or a repository through huggingface_hub.

        ``dtype``: the dtype to compute in, the backend's or its name; float32 by default. ``weights``: "int8" returns the model
        ``quantized()``; None: weights are of this dtype too.

        Raises ModelNotFound if there is no such model; ModelError that names a file which is missing, corrupt or unsupported,
        or does not fit the others, such as weights without the head that scores need; UnknownBackend and BackendUnavailable;
        TypeError for keywords of sentence-transformers, which says what to write instead; ValueError for other ``weights``.
        """
        if weights not in (None, "int8"):
            raise ValueError(f"weights is {weights!r}; expected 'int8', or None for those of the model")
        loaded = backend_without_arrays(backend, device)
        folder = locate(path_or_repo)
        floating, stamps = check.floating(loaded, dtype), stamps_of_files(folder)
        model = cls._read(
            folder, loaded, device, lambda x: loaded.xp.astype(loaded.from_numpy(x, device), floating, copy=False)
        )
        model = model if weights is None else model.quantized()
        source = folder.absolute() if Path(path_or_repo).expanduser() == folder else path_or_repo
        object.__setattr__(model, "_read_from", (str(source), loaded.name, device, dtype, weights))
        object.__setattr__(model, "_stamps", stamps)
        return model

    @classmethod
    def _read(cls, folder: Path, backend: LoadedBackend, device: Any, make: Callable[[Any], Array]) -> Self:
        """Return the model in ``folder``; ``make`` turns a NumPy array into the backend's."""
        raise NotImplementedError

    def quantized(self) -> Self:
        """Return the same model for inference, with int8 weights in its layers' linear maps: ``mha_core.quantize_weight``.

        Embeddings, norms, heads and Dense modules stay as they are. ``save_pretrained`` does not write such a model.
        """
        return replace(self, model=self.model.quantized())  # type: ignore[type-var]

    def __reduce__(self) -> Any:
        if self._read_from is not None:
            return _read_again, (type(self), *self._read_from)
        return type(self), tuple(getattr(self, field.name) for field in fields(self))  # type: ignore[arg-type]

    def save_pretrained(self, path: str | Path) -> None:
        """Write a directory that ``from_pretrained``, sentence-transformers and transformers read, such as after fine-tuning.

        Weights are in the model's own file format and names, in float32, or float16 for such a model. Tokenizer, settings and
        pooling are those of the directory that the model was read from; so are weights that are not used, such as a pooler's.

        Raises FileExistsError if ``path`` exists and is not an empty directory; ModelError if the directory that the model was
        read from is gone; TypeError if it was not read from one.
        """
        save_model(self.model, self.tokenizer.path.parent, Path(path), dense=getattr(self, "dense", None))

    @property
    def max_seq_length(self) -> int:
        """The maximum number of tokens of a text, of a pair of texts, or of the chat that a template makes of a pair.

        The rest is cut, of a pair from the longer text, of a chat before its end, with one warning that counts what was cut.
        """
        return self.tokenizer.max_seq_length

    def _rows(self, parts: Iterable[Array], width: int, dtype: Any = None) -> Array:
        """Return the rows of all parts, (n, width); without parts (0, width), by default in float32."""
        every, xp = list(parts), self.backend.xp
        if not every:
            return xp.zeros((0, width), dtype=xp.float32 if dtype is None else dtype, device=self.device)
        return every[0] if len(every) == 1 else xp.concat(every, axis=0)


def digest_of_model(model: Pretrained) -> str:
    """Return the sha256 of the files that a model was read from; "" if its numbers are not those of the files."""
    folder, read_from = model.tokenizer.path.parent, model._read_from
    is_as_the_files = read_from is not None and read_from[3:] == (None, None) and stamps_of_files(folder) == model._stamps
    return digest_of_files(folder) if is_as_the_files else ""


def _read_again(cls: Any, path_or_repo: str, backend: str, device: Any, dtype: Any, weights: str | None = None) -> Any:
    """Return ``cls.from_pretrained`` of these, as unpickling does; a process reads a model once, unless its files change."""
    folder = locate(path_or_repo)
    with _reading:
        return _read_once(cls, path_or_repo, backend, device, dtype, weights, stamps_of_files(folder))


@lru_cache(maxsize=4)
def _read_once(
    cls: Any,
    path_or_repo: str,
    backend: str,
    device: Any,
    dtype: Any,
    weights: str | None,
    stamps: tuple[tuple[str, int, int], ...],
) -> Any:
    return cls.from_pretrained(path_or_repo, backend=backend, device=device, dtype=dtype, weights=weights)
