"""The directory of a model and its files. Every error names the file."""

from __future__ import annotations

import hashlib
import json
import mmap
import re
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mha_core import MhaError

_REPOSITORY = re.compile(r"[\w.-]+(/[\w.-]+)?")
_PATTERNS = [
    "*.json",
    "*/config.json",
    "model.safetensors",
    "model-*.safetensors",
    "*_Dense/model.safetensors",
    "*.jinja",
    "*/*.jinja",
]


class ModelError(MhaError, ValueError):
    """A model that cannot be used; the message names the file and what is wrong with it."""


class ModelNotFound(MhaError, FileNotFoundError):
    """No directory has this name, and no repository of this name could be fetched."""


def locate(path_or_repo: str | Path) -> Path:
    """Return the directory of a model: a local path unchanged, a repository id through huggingface_hub and its cache."""
    if not isinstance(path_or_repo, str | Path):
        raise TypeError(f"path_or_repo is {type(path_or_repo).__name__}; expected the path of a directory, or a repository id")
    path = Path(path_or_repo).expanduser()
    name = str(path_or_repo)
    if name and path.is_dir():
        return path
    if name and path.exists():
        raise ModelError(f"{path} is a file; expected the directory of a model, with config.json and model.safetensors")
    if isinstance(path_or_repo, Path) or not _REPOSITORY.fullmatch(name) or name.startswith("."):
        raise ModelNotFound(f"no directory {path}" if name else f"path_or_repo is {name!r}; expected the path of a directory")
    import huggingface_hub

    try:
        return Path(huggingface_hub.snapshot_download(name, allow_patterns=_PATTERNS))
    except Exception as cause:
        first_line = str(cause).strip().partition("\n")[0]
        raise ModelNotFound(
            f"no directory {name}, and no model of that name could be fetched from the hub: "
            f"{type(cause).__name__}: {first_line}"
        ) from cause


def stamps_of_files(folder: Path) -> tuple[tuple[str, int, int], ...]:
    """Return the files that a model is read from: their names, sizes, and times of the last change."""
    paths = (path for kind in ("safetensors", "json", "jinja") for at in (".", "*") for path in folder.glob(f"{at}/*.{kind}"))
    stats = ((path.relative_to(folder), path.stat()) for path in sorted(paths) if path.is_file())
    return tuple((str(name), stat.st_size, stat.st_mtime_ns) for name, stat in stats)


def digest_of_files(folder: Path) -> str:
    """Return the sha256 of the names and contents of the files that a model is read from."""
    digest = hashlib.sha256()
    for name, size, _ in stamps_of_files(folder):
        digest.update(f"{name} {size} ".encode())
        with (folder / name).open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()


def read_json(path: Path, kind: type = dict, *, optional: bool = False) -> Any:
    """Return the contents of a JSON file, a ``kind``; the empty one if the file is missing and ``optional``."""
    if optional and not path.exists():
        return kind()
    contents = _contents(path)
    try:
        value = json.loads(contents.decode())
    except (ValueError, RecursionError) as cause:
        raise ModelError(f"{path} is not valid JSON: {cause}") from cause
    if not isinstance(value, kind):
        raise ModelError(f"{path} holds a {type(value).__name__}; expected a {kind.__name__}")
    return value


def read_text(path: Path) -> str:
    """Return the contents of a text file in UTF-8; raise ModelError if it is missing or not text."""
    try:
        return _contents(path).decode()
    except UnicodeDecodeError as cause:
        raise ModelError(f"{path} is not text in UTF-8: {cause.reason} at byte {cause.start}") from cause


def check_regular(path: Path) -> Path:
    """Return the path of a file. Raises ModelError for a pipe or a device, which might never end; not for what is missing."""
    if path.exists() and not path.is_file() and not path.is_dir():
        raise ModelError(f"{path} is a pipe or a device; expected a file")
    return path


def _contents(path: Path) -> bytes:
    try:
        return check_regular(path).read_bytes()
    except FileNotFoundError as cause:
        raise ModelError(f"{path} is missing: {_listing(path.parent)}") from cause
    except OSError as cause:
        raise ModelError(f"{path} cannot be read: {cause.strerror}") from cause


def field(config: Mapping[str, Any], path: Path, name: str, kind: type = int, *, least: int = 1) -> Any:
    """Return a field of a configuration; raise ModelError if it is missing, of another type, not finite, or below ``least``."""
    if name not in config:
        raise ModelError(f"{path} has no {name!r}")
    value = config[name]
    kinds = (int, float) if kind is float else kind
    if not isinstance(value, kinds) or isinstance(value, bool) != (kind is bool):
        raise ModelError(f"{path}: {name} is {value!r}; expected {kind.__name__}")
    if isinstance(value, int | float) and kind is not bool:
        most = 2**63 if kind is int else sys.float_info.max
        if not least <= value <= most:
            shown, limit = str(value), f"at least {least}, and finite" if kind is float else f"at least {least}"
            shown = shown if len(shown) <= 40 else f"{shown[:40]}..."
            raise ModelError(f"{path}: {name} is {shown}; expected {'at most 2^63' if kind is int and value > most else limit}")
    return value


def one_of(value: Any, choices: Sequence[Any] | Mapping[Any, Any], path: Path, name: str) -> Any:
    """Return a value that must be one of ``choices``; raise ModelError that lists them if it is not."""
    if not isinstance(value, str) or value not in choices:
        raise ModelError(f"{path}: {name} is {value!r}; supported: {', '.join(map(str, choices))}")
    return value


def torch_class(value: object, names: Mapping[str, str], path: Path, name: str) -> str:
    """Return our name of a class in torch.nn that a file names, such as torch.nn.modules.activation.Sigmoid."""
    module, _, kind = str(value).rpartition(".")
    if not f"{module}.".startswith("torch.nn.") or kind not in names:
        raise ModelError(f"{path}: {name} is {value!r}; supported: {', '.join(f'torch.nn.{each}' for each in names)}")
    return names[kind]


def dict_field(config: Mapping[str, Any], path: Path, name: str) -> dict[str, Any]:
    """Return a field that holds a dict, {} if it is absent or null; raise ModelError if it is of another type."""
    return {} if config.get(name) is None else field(config, path, name, dict)


def model_type(folder: Path, choices: Sequence[str] | Mapping[str, Any]) -> str:
    """Return the model_type of config.json; raise ModelError if it is none of ``choices``."""
    path = folder / "config.json"
    return one_of(field(read_json(path), path, "model_type", str), choices, path, "model_type")


WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"


class WeightsFile:
    """The weights of a model, as NumPy float arrays, each taken by name and shape: one safetensors file, or several shards.

    Shards are named by model.safetensors.index.json, which is read if there is no model.safetensors. Arrays that are missing
    or have a wrong shape are collected, and ``finish`` raises one error for all of them.
    """

    def __init__(self, folder: Path) -> None:
        index = folder / INDEX
        self.path = index if index.is_file() and not (folder / WEIGHTS).exists() else folder / WEIGHTS
        self.wrong: list[str] = []
        self.prefix = ""
        shards: Mapping[Path, set[str] | None] = {self.path: None} if self.path.name == WEIGHTS else _shards(self.path)
        self._shard_of: dict[str, _Shard] = {}
        for path, names in shards.items():
            shard = _Shard(path)
            if names is not None and (absent := names - shard.names.keys()):
                raise ModelError(f"{path} has no {min(absent)}, although {self.path} places it there")
            self._shard_of |= dict.fromkeys(shard.names if names is None else names, shard)

    def __contains__(self, name: str) -> bool:
        """Return True if there is an array of this name, prefix included."""
        return name in self._shard_of

    def use_prefix(self, prefix: str) -> None:
        """Put ``prefix`` before every name if any name in the file has it: a whole model's file does, an encoder's does not."""
        self.prefix = prefix if any(name.startswith(prefix) for name in self._shard_of) else ""

    def has(self, name: str) -> bool:
        """Return True if there is an array of this name, after the prefix."""
        return self.prefix + name in self._shard_of

    def check_count(self, name: str, count: int, setting: str) -> None:
        """Raise ModelError unless the file has arrays of ``count`` layers, with names such as ``name.0.``."""
        start = f"{self.prefix}{name}."
        numbers = {each.removeprefix(start).partition(".")[0] for each in self._shard_of if each.startswith(start)}
        if len(numbers) != count:
            raise ModelError(
                f"{self.path} does not fit its config.json: it has {len(numbers)} layers, but {setting} is {count}"
            )

    def take(self, name: str, shape: tuple[int, ...], rows: slice = slice(None)) -> Any:
        """Return rows of the array, as float32 if it is stored narrower; nothing of one that ``finish`` will report."""
        import numpy

        name = self.prefix + name
        shard = self._shard_of.get(name)
        stored = None if shard is None else shard.names[name]
        if shard is not None and stored == shape:
            return shard.read(name, rows)
        wrong = f"is missing (expected shape {shape})" if stored is None else f"has shape {stored}, expected {shape}"
        self.wrong.append(f"{name} {wrong}")
        return numpy.zeros((0,) * len(shape), dtype=numpy.float32)

    def every(self) -> dict[str, Any]:
        """Return all arrays by their names in the file, those that no model uses too, as float32 if stored as bfloat16."""
        return {name: shard.stored(name) for name, shard in self._shard_of.items()}

    def finish(self) -> None:
        """Raise ModelError that lists what was missing or had a wrong shape, up to 8 arrays by name."""
        if self.wrong:
            shown, more = self.wrong[:8], len(self.wrong) - 8
            tail = [f"and {more} more"] if more > 0 else []
            raise ModelError(f"{self.path} does not fit its config.json: " + "; ".join(shown + tail))


class _Shard:
    """A safetensors file: the shapes of its arrays by name, and their numbers."""

    def __init__(self, path: Path) -> None:
        from safetensors import SafetensorError, safe_open

        self.path = check_regular(path)
        if not path.is_file():
            raise ModelError(f"{path} is missing: {_listing(path.parent)}")
        try:
            self._file = safe_open(path, framework="numpy")  # which checks the whole header
            with path.open("rb") as file:
                self._start = 8 + int.from_bytes(file.read(8), "little")
                self._headers = json.loads(file.read(self._start - 8))
                self._bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
            self.names = {name: tuple(self._headers[name]["shape"]) for name in self._file.keys()}  # noqa: SIM118 - no mapping
        except (SafetensorError, OSError) as cause:
            raise ModelError(f"{path} is truncated or corrupt: {cause}") from cause

    def read(self, name: str, rows: slice = slice(None)) -> Any:
        """Return rows of an array.

        As float32 or float64 they are the file's own memory, which processes share; writes go into a copy.
        """
        import numpy

        header = self._headers[name]
        kind = header["dtype"]
        if kind not in _KINDS:
            raise ModelError(f"{self.path}: {name} is stored as {kind}; supported: {', '.join(_KINDS)}")
        start, stop = (self._start + offset for offset in header["data_offsets"])
        stored = numpy.frombuffer(memoryview(self._bytes)[start:stop], dtype=_KINDS[kind]).reshape(self.names[name])[rows]
        if kind == "BF16":  # NumPy lacks it; it is the upper half of float32
            return (stored.astype(numpy.uint32) << 16).view(numpy.float32)
        return stored.astype(numpy.float32) if kind == "F16" else stored

    def stored(self, name: str) -> Any:
        """Return an array in the dtype in which it is stored, but bfloat16 as float32."""
        return self.read(name) if self._headers[name]["dtype"] == "BF16" else self._file.get_tensor(name)


def _shards(index: Path) -> Mapping[Path, set[str]]:
    """Return the names of arrays that an index places in each file beside it."""
    weight_map = field(read_json(index), index, "weight_map", dict)
    shards = defaultdict[Path, set[str]](set)
    for name, file in weight_map.items():
        if not isinstance(file, str) or file != Path(file).name:
            raise ModelError(f"{index}: weight_map places {name} in {file!r}; expected the name of a file beside it")
        shards[index.parent / file].add(name)
    return shards


_KINDS = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}
"""The dtypes of stored arrays that can be read, and how NumPy reads them."""


def _listing(folder: Path) -> str:
    """Return the contents of a directory, for an error about a missing file."""
    if not folder.is_dir():
        return f"there is no directory {folder}"
    names = sorted(entry.name for entry in folder.iterdir())
    return (
        f"the directory holds {', '.join(names[:12])}{', …' if len(names) > 12 else ''}" if names else "the directory is empty"
    )
