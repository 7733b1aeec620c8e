"""Where a model lies, and how its files are read. Every error names the file."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..dispatch.errors import MhaError

_REPOSITORY = re.compile(r"[\w.-]+(/[\w.-]+)?")
_PATTERNS = ["*.json", "*/config.json", "model.safetensors"]


class ModelError(MhaError, ValueError):
    """A model directory that cannot be used; the message names the file and what is wrong with it."""


class ModelNotFound(MhaError, FileNotFoundError):
    """No directory of this name, and no repository of it within reach."""


def locate(path_or_repo: str | Path) -> Path:
    """The directory of a model: a local path as it is, a repository id through huggingface_hub and its cache."""
    path = Path(path_or_repo).expanduser()
    if path.is_dir():
        return path
    name = str(path_or_repo)
    if path.exists():
        raise ModelError(f"{path} is a file; expected the directory of a model, with config.json and model.safetensors")
    if isinstance(path_or_repo, Path) or not _REPOSITORY.fullmatch(name) or name.startswith("."):
        raise ModelNotFound(f"no directory {path}")
    import huggingface_hub

    try:
        return Path(huggingface_hub.snapshot_download(name, allow_patterns=_PATTERNS))
    except Exception as cause:
        first_line = str(cause).strip().partition("\n")[0]
        raise ModelNotFound(
            f"no directory {name}, and no model of that name could be had from the hub: {type(cause).__name__}: {first_line}"
        ) from cause


def read_json(path: Path, kind: type = dict) -> Any:
    """The contents of a JSON file; raises ModelError where it is missing, broken or of another kind."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as cause:
        raise ModelError(f"{path} is missing: {_what_is_there(path.parent)}") from cause
    except ValueError as cause:
        raise ModelError(f"{path} is no valid JSON: {cause}") from cause
    if not isinstance(found, kind):
        raise ModelError(f"{path} holds a {type(found).__name__}; expected a {kind.__name__}")
    return found


def field(config: Mapping[str, Any], path: Path, name: str, kind: type = int) -> Any:
    """A field of a configuration; raises ModelError where it is missing or of another kind."""
    if name not in config:
        raise ModelError(f"{path} has no {name!r}")
    if not isinstance(config[name], kind) or isinstance(config[name], bool) != (kind is bool):
        raise ModelError(f"{path}: {name} is {config[name]!r}; expected {kind.__name__}")
    return config[name]


def one_of(value: Any, choices: Sequence[Any] | Mapping[Any, Any], path: Path, name: str) -> Any:
    """A value that must be one of several; raises ModelError that lists them."""
    if value not in choices:
        raise ModelError(f"{path}: {name} is {value!r}; supported: {', '.join(map(str, choices))}")
    return value


class WeightsFile:
    """The arrays of a safetensors file, as NumPy float arrays, each taken by name and shape.

    What is missing or of a wrong shape is gathered while the model is built, and raised together by ``finish``.
    """

    def __init__(self, path: Path) -> None:
        from safetensors import SafetensorError, safe_open

        self.path = path
        self.wrong: list[str] = []
        if not path.is_file():
            raise ModelError(f"{path} is missing: {_what_is_there(path.parent)}")
        try:
            self._file = safe_open(path, framework="numpy")
            self._names = frozenset(self._file.keys())
        except (SafetensorError, OSError) as cause:
            raise ModelError(f"{path} is truncated or corrupt: {cause}") from cause
        self.prefix = ""

    def __contains__(self, name: str) -> bool:
        return self.prefix + name in self._names

    def take(self, name: str, shape: tuple[int, ...]) -> Any:
        """The array, as float32 where it is stored narrower; zeros stand in for one that ``finish`` will report."""
        import numpy

        if name not in self:
            self.wrong.append(f"{self.prefix}{name} is missing (expected shape {shape})")
            return numpy.zeros(shape, dtype=numpy.float32)
        part = self._file.get_slice(self.prefix + name)
        found = tuple(part.get_shape())
        if found != shape:
            self.wrong.append(f"{self.prefix}{name} has shape {found}, expected {shape}")
            return numpy.zeros(shape, dtype=numpy.float32)
        return self._read(part.get_dtype(), self.prefix + name)

    def finish(self) -> None:
        """Raise ModelError if anything was missing or of a wrong shape, listing the first few."""
        if self.wrong:
            shown, more = self.wrong[:8], len(self.wrong) - 8
            tail = [f"and {more} more"] if more > 0 else []
            raise ModelError(f"{self.path} does not fit its config.json: " + "; ".join(shown + tail))

    def _read(self, kind: str, name: str) -> Any:
        import numpy
        from safetensors import deserialize

        if kind not in _KINDS:
            raise ModelError(f"{self.path}: {name} is stored as {kind}; supported: {', '.join(_KINDS)}")
        if kind != "BF16":
            array = self._file.get_tensor(name)
            return array.astype(numpy.float32) if kind == "F16" else array
        # NumPy has no name for bfloat16, but it is the upper half of float32
        stored = dict(deserialize(self.path.read_bytes()))[name]
        bits = numpy.frombuffer(stored["data"], dtype="<u2").astype(numpy.uint32) << 16
        return bits.view(numpy.float32).reshape(stored["shape"])


_KINDS = ("F64", "F32", "F16", "BF16")


def _what_is_there(folder: Path) -> str:
    if not folder.is_dir():
        return f"there is no directory {folder}"
    names = sorted(entry.name for entry in folder.iterdir())
    return (
        f"the directory holds {', '.join(names[:12])}{', …' if len(names) > 12 else ''}" if names else "the directory is empty"
    )
