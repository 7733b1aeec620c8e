"""Layers as safetensors files: the arrays by their dotted names, and in the metadata what is needed to build them again."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from ..algebra.arrays import Array
from ..dispatch.errors import MhaError
from ..dispatch.selection import backend_of, backend_without_arrays

_KEY = "mha_core.layer"


class LayerFileError(MhaError, ValueError):
    """A file that holds no layer, or not the one asked for; the message names what is missing, unknown or of a wrong shape."""


def save(layer: Any, path: str | Path) -> None:
    """Write a layer; the file appears whole, or not at all."""
    from safetensors.numpy import save as to_bytes

    arrays, dtypes = {}, {}
    for name, x in layer.arrays().items():
        backend = backend_of({name: x})
        dtypes[name] = str(x.dtype).rpartition(".")[2]
        narrow = dtypes[name] == "bfloat16"  # NumPy has no name for it: stored as float32, which holds it exactly
        arrays[name] = _contiguous(backend.to_numpy(backend.xp.astype(x, backend.xp.float32) if narrow else x))
    plan = json.dumps({"format": 1, "layer": _plan("", layer), "dtypes": dtypes})
    contents = to_bytes(arrays, metadata={_KEY: plan})
    target = Path(path)
    handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(contents)
        os.replace(temporary, target)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(temporary)
        raise


def load(path: str | Path, known: Mapping[str, type], *, backend: str | None, device: Any) -> Any:
    """The layer of a file, its arrays in ``backend``. Raises LayerFileError for what does not fit, listing it."""
    from safetensors import SafetensorError, safe_open

    target = backend_without_arrays(backend)
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
    plan = json.loads(metadata[_KEY])
    if plan.get("format") != 1:
        raise LayerFileError(f"{path} has format {plan.get('format')!r}; this mha-core reads format 1")
    names = set(_names(plan["layer"]))
    if missing := sorted(names - set(stored)):
        raise LayerFileError(f"{path} lacks {', '.join(missing)}")
    if unknown := sorted(set(stored) - names):
        raise LayerFileError(f"{path} holds arrays that its layer does not have: {', '.join(unknown)}")

    def make(name: str) -> Array:
        x = target.from_numpy(stored[name], device)
        wanted = getattr(target.xp, plan["dtypes"][name], None)
        if wanted is None:
            raise LayerFileError(f"{path}: {name} is {plan['dtypes'][name]}, which {target.name} does not have")
        return target.xp.astype(x, wanted, copy=False)

    return _build(plan["layer"], known, make, path)


def _plan(name: str, value: Any) -> Any:
    """A layer as JSON: {"class": ..., field: ...}, with the name of an array in its place."""
    if is_dataclass(value):
        inner = {field.name: _plan(f"{name}.{field.name}".lstrip("."), getattr(value, field.name)) for field in fields(value)}
        return {"class": type(value).__name__, **inner}
    if isinstance(value, tuple):
        return [_plan(f"{name}.{at}", item) for at, item in enumerate(value)]
    return {"array": name} if isinstance(value, Array) else value


def _names(plan: Any) -> list[str]:
    if isinstance(plan, list):
        return [name for item in plan for name in _names(item)]
    if not isinstance(plan, dict):
        return []
    return [plan["array"]] if "array" in plan else [name for item in plan.values() for name in _names(item)]


def _build(plan: Any, known: Mapping[str, type], make: Callable[[str], Array], path: str | Path) -> Any:
    if isinstance(plan, list):
        return tuple(_build(item, known, make, path) for item in plan)
    if not isinstance(plan, dict):
        return plan
    if "array" in plan:
        return make(plan["array"])
    if plan["class"] not in known:
        raise LayerFileError(f"{path} holds a {plan['class']!r}, which this mha-core does not know")
    settings = {name: _build(item, known, make, path) for name, item in plan.items() if name != "class"}
    return known[plan["class"]](**settings)


def _contiguous(x: Any) -> Any:
    """safetensors writes the memory of an array as it lies, whatever its strides."""
    import numpy

    return numpy.ascontiguousarray(x)
