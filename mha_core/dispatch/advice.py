"""Conversions that errors tell the user to write; they can be copied as they stand.

An argument is named ``key``, the argument of a mask or bias ``key_lengths(n)``, and a weight in a layer ``attention.w_q``.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Hashable, Mapping
from typing import Any

from ..algebra.arrays import dtype_name
from .backend import LoadedBackend


def odd_one(kinds: Mapping[str, Hashable]) -> tuple[str, str]:
    """Return the names of the array to be converted and of one that it should be like: what most have is right.

    With as many of both kinds, the first array is right.
    """
    counts = Counter(kinds.values())  # in the order of the arrays, so the first of equals is the greatest
    kind = max(counts, key=lambda each: counts[each])
    like = next(name for name, other in kinds.items() if other == kind)
    return next(name for name, other in kinds.items() if other != kind), like


def converted(backend: LoadedBackend, name: str, x: Any) -> str:
    """Return how to convert an array of another library to this backend's: by DLPack if both support it, else ``asarray``.

    ``Backend.advice`` takes precedence.
    """
    line = _advice(backend, "convert") or f"{_converter(backend, x)}({{x}})"
    return _written(name, lambda x: line.format(x=x), layer=f"layer.to({backend.name!r})")


def _advice(backend: LoadedBackend, what: str) -> str | None:
    """Return the line that the backend itself gives, if any."""
    return (backend.record.advice or {}).get(what)


def _converter(backend: LoadedBackend, x: Any) -> str:
    of_types = (each.partition(":")[0] for each in backend.record.types if isinstance(each, str))
    modules = [module for path in (*of_types, backend.xp.__name__) for module in _enclosing(path)]
    functions = ["from_dlpack", "asarray"] if hasattr(x, "__dlpack__") else ["asarray"]
    names = (f"{module}.{each}" for each in functions for module in modules if hasattr(sys.modules.get(module), each))
    return next(names, f"{backend.xp.__name__}.asarray")


def _enclosing(path: str) -> list[str]:
    """Return a module and those around it, the outermost first, which is the one that users import."""
    names = path.split(".")
    return [".".join(names[:end]) for end in range(1, len(names) + 1)]


def cast(backend: LoadedBackend, name: str, x: Any, dtype: Any) -> str:
    """Return how to convert an array to another dtype: by its own method, where it has one that users know.

    ``Backend.advice`` takes precedence.
    """
    known = dtype_name(dtype)
    line = _advice(backend, "cast") or _usual_cast(backend, x, dtype)
    return _written(name, lambda x: line.format(x=x, dtype=known), layer=f"layer.to({backend.name!r}, dtype={known!r})")


def _usual_cast(backend: LoadedBackend, x: Any, dtype: Any) -> str:
    if hasattr(x, "astype"):
        return "{x}.astype({dtype!r})"
    if hasattr(x, "to"):
        return "{x}.to(" + str(dtype) + ")"
    return f"{backend.xp.__name__}.astype({{x}}, {backend.xp.__name__}.{{dtype}})"


def _written(name: str, convert: Callable[[str], str], *, layer: str) -> str:
    """Return the line to write for an argument, for an argument of a mask or bias, or for a weight."""
    label, bracket, inside = name.removesuffix(")").partition("(")
    if bracket:
        return f"{label}({convert(inside)})"
    return f"layer = {layer}" if "." in name else f"{name} = {convert(name)}"
