"""The outline of a layer, which its ``repr`` shows: names, shapes, dtypes, backend, and the number of parameters."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from itertools import groupby
from typing import Any

from ..algebra.arrays import Array, dtype_name, is_array
from ..algebra.int8 import Int8Weight
from ..dispatch.selection import find_backend

_INDENT = "  "
Lines = tuple[str, ...]


def outline(layer: Any, arrays: Mapping[str, Array]) -> str:
    """Return the lines for a layer: first its class, backend and size, then what is in it. Equal neighbours are one line."""
    usual = _most_common(_kind(x) for x in arrays.values())
    heading = ", ".join(
        [_name(layer), *filter(None, [usual]), f"{sum(math.prod(x.shape) for x in arrays.values()):,} parameters"]
    )
    return "\n".join([heading, *_inside(layer, usual)])


def _inside(layer: Any, usual: str) -> Iterator[str]:
    """Yield the indented lines of a layer's fields; neighbouring arrays of one shape share a line."""
    values = [(field.name, getattr(layer, field.name)) for field in fields(layer)]
    for shape, group in groupby(values, key=lambda pair: _shape(pair[1], usual)):
        if shape:
            yield f"{_INDENT}{', '.join(name for name, _ in group)} {shape}"
            continue
        for name, value in group:
            yield from (_INDENT + line for line in _lines(name, value, usual))


def _shape(value: Any, usual: str) -> str:
    """Return the shape of an array, and its kind unless it is the usual one; "" for anything else."""
    if isinstance(value, Int8Weight):
        return f"{value.shape} int8"
    if not is_array(value):
        return ""
    kind = _kind(value)
    return f"{tuple(value.shape)}" + (f" {kind}" if kind != usual else "")


def _lines(name: str, value: Any, usual: str) -> Iterator[str]:
    """Yield the lines of a field that holds layers; none for a setting, which stands beside the class."""
    if _has_fields(value):
        yield f"{name}: {_name(value)}"
        yield from _inside(value, usual)
    elif isinstance(value, tuple) and any(map(_has_fields, value)):
        yield from _items(name, value, usual)


def _items(name: str, items: tuple[Any, ...], usual: str) -> Iterator[str]:
    """Yield the lines of a tuple of layers; neighbours with the same lines once, under the numbers of the first and last."""
    numbered = enumerate(tuple(_lines("", item, usual)) for item in items)
    for (first, *others), group in groupby(numbered, key=lambda pair: pair[1]):
        at = [number for number, _ in group]
        span = f"{at[0]}" if len(at) == 1 else f"{at[0]}-{at[-1]}"
        yield f"{name}.{span}{first}"
        yield from others


def _name(layer: Any) -> str:
    """Return the class with the settings that differ from their defaults."""
    values = ((field, getattr(layer, field.name)) for field in fields(layer))
    settings = [
        f"{field.name}={value!r}"
        for field, value in values
        if isinstance(value, bool | int | float | str) and (value != field.default or field.name == "eps")
    ]
    return type(layer).__name__ + (f"({', '.join(settings)})" if settings else "")


def _has_fields(value: Any) -> bool:
    return is_dataclass(value) and not isinstance(value, type)


def _kind(x: Array) -> str:
    """Return the backend and the dtype of an array, such as "numpy float32"; without a backend, its library."""
    backend = find_backend(x)
    library = type(x).__module__.partition(".")[0] if backend is None else backend.name
    return f"{library} {dtype_name(x.dtype)}"


def _most_common(kinds: Iterator[str]) -> str:
    return next((kind for kind, _ in Counter(kinds).most_common(1)), "")
