"""Layers as safetensors files: arrays by dotted name, and metadata from which the layer is built again."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, get_args

from ..algebra.arrays import Array, dtype_name, is_array
from ..dispatch.default import backend_without_arrays
from ..dispatch.errors import MhaError
from ..dispatch.known import DTYPES
from ..dispatch.selection import backend_of
from ..dispatch.typed import field_types, fits, in_words
from .atomic import atomic_file

_KEY = "mha_core.layer"


class LayerFileError(MhaError, ValueError):
    """The file does not contain the expected layer; the message lists what is missing, unknown or of a wrong shape."""


def save(layer: Any, path: str | Path) -> None:
    """Write a layer; the file is written whole or not at all."""
    import numpy
    from safetensors.numpy import save as to_bytes

    arrays, dtypes = {}, {}
    for name, x in layer.arrays().items():
        backend = backend_of({name: x})
        dtypes[name] = dtype_name(x.dtype)
        if dtypes[name] == "bfloat16":  # NumPy lacks it; float32 represents it exactly
            x = backend.xp.astype(x, backend.xp.float32)
        arrays[name] = numpy.ascontiguousarray(backend.to_numpy(x))  # safetensors writes memory as it is, whatever the strides
    plan = json.dumps({"format": 1, "layer": _plan("", layer), "dtypes": dtypes}, default=_plain)
    with atomic_file(Path(path)) as file:
        file.write(to_bytes(arrays, metadata={_KEY: plan}))


def load(path: str | Path, known: Mapping[str, type], *, backend: str | None, device: Any) -> Any:
    """Return the layer in a file, with its arrays in ``backend``. Raises LayerFileError that lists what does not fit."""
    from safetensors import SafetensorError, safe_open

    target = backend_without_arrays(backend, device)
    if Path(path).is_dir():
        raise LayerFileError(f"{path} is a directory; expected a file that .save(path) wrote")
    try:
        with safe_open(path, framework="numpy") as file:
            metadata = file.metadata() or {}
            stored = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
    except FileNotFoundError:
        raise
    except (SafetensorError, OSError) as cause:
        raise LayerFileError(f"{path} is truncated or corrupt: {cause}") from cause
    if _KEY not in metadata:
        raise LayerFileError(f"{path} is a safetensors file without the metadata of a layer: write it with .save(path)")
    try:
        plan = json.loads(metadata[_KEY])
        version = plan.get("format")
        shapes = dict(_shapes(plan["layer"])) if version == 1 else {}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as cause:
        raise LayerFileError(f"{path} has metadata that do not describe a layer: {cause!r}") from cause
    if version != 1:
        raise LayerFileError(f"{path} has format {version!r}; this mha-core reads format 1")
    names = set(shapes)
    if missing := sorted(names - set(stored)):
        raise LayerFileError(f"{path} lacks {', '.join(missing)}")
    if unknown := sorted(set(stored) - names):
        raise LayerFileError(f"{path} holds arrays that its layer does not have: {', '.join(unknown)}")

    for name, shape in shapes.items():
        if stored[name].shape != shape:
            raise LayerFileError(f"{path}: {name} has shape {stored[name].shape}, expected {shape}")

    def make(name: str) -> Array:
        x = target.from_numpy(stored[name], device)
        kind = plan["dtypes"][name]
        wanted = getattr(target.xp, kind, None) if kind in (*DTYPES, "int8") else None
        if wanted is None:
            raise LayerFileError(f"{path}: {name} is {kind}, which {target.name} lacks")
        return target.xp.astype(x, wanted, copy=False)

    try:
        return _build(plan["layer"], known, make, path)
    except LayerFileError:
        raise
    except (KeyError, TypeError, ValueError) as cause:
        raise LayerFileError(f"{path} does not fit the layers of this mha-core: {cause}") from cause


def _plan(name: str, value: Any) -> Any:
    """Return a layer as JSON: {"class": ..., field: ...}, with the name and shape of an array in its place."""
    if is_dataclass(value):
        inner = {field.name: _plan(f"{name}.{field.name}".lstrip("."), getattr(value, field.name)) for field in fields(value)}
        return {"class": type(value).__name__, **inner}
    if isinstance(value, tuple):
        return [_plan(f"{name}.{at}", item) for at, item in enumerate(value)]
    return {"array": name, "shape": list(value.shape)} if is_array(value) else value


def _plain(value: Any) -> Any:
    """Return a NumPy number as a Python number."""
    if hasattr(value, "item"):
        return value.item()
    raise TypeError(f"a setting of the layer is {value!r}; expected a number, a string or a bool")


def _shapes(plan: Any) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield the name and the shape of every array of a plan."""
    if isinstance(plan, dict) and "array" in plan:
        if not isinstance(plan["array"], str):
            raise ValueError(f"the name of an array is {plan['array']!r}")
        yield plan["array"], tuple(plan["shape"])
    elif isinstance(plan, dict | list):
        for item in plan.values() if isinstance(plan, dict) else plan:
            yield from _shapes(item)


def _build(plan: Any, known: Mapping[str, type], make: Callable[[str], Array], path: str | Path) -> Any:
    if isinstance(plan, list):
        return tuple(_build(item, known, make, path) for item in plan)
    if not isinstance(plan, dict):
        return plan
    if "array" in plan:
        return make(plan["array"])
    if plan["class"] not in known:
        raise LayerFileError(f"{path} holds a {plan['class']!r}, which this mha-core does not know")
    cls = known[plan["class"]]
    settings = {name: _build(item, known, make, path) for name, item in plan.items() if name != "class"}
    layer = cls(**settings)
    layers = tuple(known.values())
    for name, declared in field_types(cls).items() if cls.__module__.startswith("mha_core.") else ():
        value = getattr(layer, name)
        takes_a_layer = any(isinstance(one, type) and issubclass(one, layers) for one in (declared, *get_args(declared)))
        if not fits(value, declared) and not (takes_a_layer and isinstance(value, layers)):  # a user's own layer may be there
            raise TypeError(f"{name} of {cls.__name__} is {_short(value)}; expected {in_words(declared)}")
    layer._check()
    return layer


def _short(value: Any) -> str:
    return value if len(value := repr(value)) < 60 else f"{value[:60]}…"
