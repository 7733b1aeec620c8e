"""Arrays inside other values: in masks and biases, layers, tuples and mappings."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any

from ..algebra.arrays import is_array


def arrays_in(value: Any) -> Iterator[Any]:
    """Yield every array in a value, in order."""
    if is_array(value):
        yield value
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from arrays_in(each)
    elif isinstance(value, tuple | list):
        for each in value:
            yield from arrays_in(each)
    elif is_dataclass(value):
        for field in fields(value):
            yield from arrays_in(getattr(value, field.name))


def map_arrays(value: Any, function: Callable[[Any], Any]) -> Any:
    """Return the same value with ``function`` applied to every array in it."""
    if is_array(value):
        return function(value)
    if isinstance(value, dict):
        return {name: map_arrays(each, function) for name, each in value.items()}
    if type(value) in (tuple, list):
        return type(value)(map_arrays(each, function) for each in value)
    if is_dataclass(value) and not isinstance(value, type):
        return replace(
            value, **{field.name: map_arrays(getattr(value, field.name), function) for field in fields(value) if field.init}
        )
    return value
