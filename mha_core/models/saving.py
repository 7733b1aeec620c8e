"""Text models as directories: weights under the names of their family, beside copies of the other files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..algebra.arrays import Array
from ..dispatch.selection import backend_of
from ..layers.atomic import atomic_file
from ..layers.base import Layer
from .checkpoint import build_model
from .dense import Dense
from .families import MODEL_TYPES
from .files import ModelError, WeightsFile, field, one_of, read_json
from .modules import read_modules

_COPIED = ("*.json", "*.txt", "*.model", "*/*.json")
"""The files of settings and vocabularies, in the directory and those directly below it."""


@dataclass(frozen=True)
class _Place:
    """Where an array is in a file: it stands for the array while the model is built."""

    name: str
    is_transposed: bool = False
    shape: tuple[int, ...] = ()
    dtype: Any = None

    @property
    def T(self) -> _Place:  # noqa: N802  (an array's name)
        return replace(self, is_transposed=True)

    def __getitem__(self, key: Any) -> _Place:
        return self


class _Places:
    """Stands for a file of weights: each array is its place."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix

    def check_count(self, name: str, count: int, setting: str) -> None:
        """Any number of layers has places."""

    def take(self, name: str, shape: tuple[int, ...]) -> _Place:
        return _Place(self.prefix + name, shape=shape)


def save_model(
    model: Layer, source: Path, target: Path, *, build: Callable[..., Layer] = build_model, dense: Sequence[Dense] = ()
) -> None:
    """Write a model that was read from ``source``, a directory, to ``target``; the file of weights comes last.

    ``build``: the function that made it of the arrays of a file. ``dense``: the Dense modules of ``source``, in order.

    Raises FileExistsError if ``target`` is not new or empty, ModelError if files of ``source`` are gone.
    """
    import shutil  # takes 5 ms; imported only to write a model

    from safetensors.numpy import save as to_bytes

    path = source / "config.json"
    family = MODEL_TYPES[one_of(field(read_json(path), path, "model_type", str), MODEL_TYPES, path, "model_type")]
    file = WeightsFile(source / "model.safetensors")
    file.use_prefix(family.prefix)
    places = build(source, family, _Places(file.prefix), lambda place: place).arrays()
    stored = file.every()
    for name, x in model.arrays().items():
        place: Any = places[name]
        new = _as_stored(x).T if place.is_transposed else _as_stored(x)
        # a table may have more rows than the model uses
        stored[place.name] = _joined(new, stored[place.name].astype(new.dtype)[len(new) :])
    modules = read_modules(source)
    if len(modules.dense) != len(dense):
        raise ModelError(f"{source / 'modules.json'} has {len(modules.dense)} Dense modules, but the encoder has {len(dense)}")
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise FileExistsError(f"{target} exists: write to the name of a new directory, or of an empty one")
    for name in _directories(source):
        (target / name).mkdir(parents=True, exist_ok=True)
    for pattern in _COPIED:
        for each in source.glob(pattern):
            (target / each.relative_to(source)).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(each, target / each.relative_to(source))
    for name, layer in zip(modules.dense, dense, strict=True):
        arrays = {"linear.weight": _joined(_as_stored(layer.w).T, ())}
        if layer.b is not None:
            arrays["linear.bias"] = _as_stored(layer.b)
        with atomic_file(target / name / "model.safetensors") as written:
            written.write(to_bytes(arrays, metadata={"format": "pt"}))
    with atomic_file(target / "model.safetensors") as written:
        written.write(to_bytes(stored, metadata={"format": "pt"}))


def _as_stored(x: Array) -> Any:
    """Return an array as NumPy's, in float32, or float16 if it has that dtype."""
    backend = backend_of({"weights": x})
    is_half = str(x.dtype).rpartition(".")[2] == "float16"
    return backend.to_numpy(x if is_half else backend.xp.astype(x, backend.xp.float32))


def _joined(new: Any, rest: Any) -> Any:
    import numpy

    return numpy.ascontiguousarray(numpy.concatenate([new, rest]) if len(rest) else new)


def _directories(source: Path) -> list[str]:
    """Return the directories that modules.json names, which may hold no file; "" for the directory itself."""
    path = source / "modules.json"
    modules = read_json(path, list) if path.exists() else []
    return ["", *(str(module.get("path", "")) for module in modules if isinstance(module, dict))]
