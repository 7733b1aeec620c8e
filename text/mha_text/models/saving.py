"""Text models as directories: weights under the names of their family, beside copies of the other files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mha_core import Int8Weight
from mha_core.shared import Array, Layer, atomic_file, backend_of, device_of, dtype_name, holds

from .checkpoint import build_model, choose
from .dense import Dense
from .families import MODEL_TYPES
from .files import INDEX, WEIGHTS, ModelError, WeightsFile, model_type
from .modules import listed_modules, read_modules

_COPIED = ("*.json", "*.txt", "*.model", "*.jinja", "*/*.json", "*/*.jinja")
"""The files of settings and vocabularies, in the directory and those directly below it."""


@dataclass(frozen=True)
class _Place:
    """The place of an array in a file, which stands for the array while the model is built."""

    name: str
    shape: tuple[int, ...] = ()
    rows: tuple[int | None, int | None] = (None, None)
    """The first and last of the rows that the model uses, as in a slice."""
    is_transposed: bool = False
    shift: float = 0.0
    """The number that was added to the array of the file."""
    dtype: Any = None

    @property
    def T(self) -> _Place:  # noqa: N802  (an array's name)
        return replace(self, is_transposed=True)

    def __getitem__(self, rows: slice) -> _Place:
        return replace(self, rows=(rows.start, rows.stop))

    def astype(self, dtype: str) -> _Place:
        return self

    def __add__(self, shift: float) -> _Place:
        return replace(self, shift=shift)


class _Places(WeightsFile):
    """A file of weights each of which is taken as its place."""

    def take(self, name: str, shape: tuple[int, ...], rows: slice = slice(None)) -> _Place:
        return _Place(self.prefix + name, shape)[rows]


def save_model(model: Layer, source: Path, target: Path, *, dense: Sequence[Dense] | None = None) -> None:
    """Write a model that was read from ``source``, a directory, to ``target``; the file of weights comes last.

    ``dense``: the Dense modules of ``source``, in order; None: a model that has none, and needs no Pooling module."""
    import shutil  # takes 5 ms; imported only to write a model

    from safetensors.numpy import save as to_bytes

    if holds(model, Int8Weight):
        raise TypeError("the model has int8 weights, which are not those of its file: save the model that was quantized")
    families = MODEL_TYPES[model_type(source, MODEL_TYPES)]
    file = _Places(source)
    family = choose(source, families, file)
    build = getattr(model, "build", build_model)
    places = build(source, family, file, lambda place: place).arrays()
    stored = file.every()
    for name, x in model.arrays().items():
        place: Any = places[name]
        if not isinstance(place, _Place):
            _check_equal(name, x, place, source / "config.json")
            continue
        new = _to_numpy(name, x)
        whole = stored[place.name].astype(new.dtype)  # of which the model may use some rows only
        whole[slice(*place.rows)] = (new.T if place.is_transposed else new) - new.dtype.type(place.shift)
        stored[place.name] = whole
    named = [] if dense is None else read_modules(source)[1]
    if len(named) != len(dense or ()):
        raise ModelError(f"{source / 'modules.json'} has {len(named)} Dense modules, but the encoder has {len(dense or ())}")
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise FileExistsError(f"{target} exists: write to the name of a new directory, or of an empty one")
    for name in ["", *(where for _, where in listed_modules(source))]:  # which may hold no file
        (target / name).mkdir(parents=True, exist_ok=True)
    for pattern in _COPIED:
        for each in source.glob(pattern):
            if each.name == INDEX:  # of shards, in place of which there will be one file
                continue
            (target / each.relative_to(source)).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(each, target / each.relative_to(source))
    for name, layer in zip(named, dense or (), strict=True):
        arrays = {"linear.weight": _to_numpy("dense", layer.w).T.copy()}
        if layer.b is not None:
            arrays["linear.bias"] = _to_numpy("dense", layer.b)
        with atomic_file(target / name / WEIGHTS) as written:
            written.write(to_bytes(arrays, metadata={"format": "pt"}))
    with atomic_file(target / WEIGHTS) as written:
        written.write(to_bytes(stored, metadata={"format": "pt"}))


def _to_numpy(name: str, x: Array) -> Any:
    """Return an array as float16 if it is, and otherwise as float32."""
    backend = backend_of({name: x})
    is_half = dtype_name(x.dtype) == "float16"
    return backend.to_numpy(x if is_half else backend.xp.astype(x, backend.xp.float32))


def _check_equal(name: str, x: Array, computed: Any, path: Path) -> None:
    """Raise ModelError if a table that follows from config.json, and is in no file, was changed."""
    backend = backend_of({name: x})
    expected = backend.xp.astype(backend.from_numpy(computed, device_of(x)), x.dtype)
    if (_to_numpy(name, x) != _to_numpy(name, expected)).any():
        raise ModelError(f"{name} was changed, but it cannot be saved: {path} determines it")
