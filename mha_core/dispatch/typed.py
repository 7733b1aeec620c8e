"""Checks that values have the types that the fields of a dataclass declare, for records and files from elsewhere."""

from __future__ import annotations

import types
import typing
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import fields
from functools import cache
from typing import Any

from ..algebra.arrays import Array, is_array


@cache
def field_types(cls: Any) -> dict[str, Any]:
    """Return the declared type of each field of a dataclass, by name."""
    every = typing.get_type_hints(cls)
    return {field.name: every[field.name] for field in fields(cls)}


def fits(value: Any, declared: Any) -> bool:
    """Return whether a value has a declared type. A bool is no int; an int is a float."""
    origin, arguments = typing.get_origin(declared), typing.get_args(declared)
    if origin in (types.UnionType, typing.Union):
        return any(fits(value, one) for one in arguments)
    if origin in (tuple, frozenset):
        kind = Sequence if origin is tuple else Set  # also lists and plain sets, which old plugins may hold
        return isinstance(value, kind) and not isinstance(value, str) and all(fits(x, arguments[0]) for x in value)
    if origin is Mapping:
        return isinstance(value, Mapping) and all(fits(x, arguments[0]) and fits(y, arguments[1]) for x, y in value.items())
    if origin is Callable:
        return callable(value)
    if isinstance(declared, typing.TypeVar):
        return isinstance(value, declared.__bound__ or object)
    if declared is Array:
        return is_array(value)
    if declared in (int, float):
        return isinstance(value, (int, declared)) and not isinstance(value, bool)
    return isinstance(value, declared)


def in_words(declared: Any) -> str:
    """Return a declared type as an error message names it."""
    origin, arguments = typing.get_origin(declared), typing.get_args(declared)
    if origin in (types.UnionType, typing.Union):
        return " or ".join(in_words(one) for one in arguments)
    if origin in (tuple, frozenset):
        return f"a {origin.__name__}, each item {in_words(arguments[0])}"
    if origin is Mapping:
        return f"a mapping of {in_words(arguments[0])} to {in_words(arguments[1])}"
    if origin is Callable:
        return "a function"
    if declared is Array:
        return "an array"
    if isinstance(declared, typing.TypeVar):
        return in_words(declared.__bound__ or object)
    return "None" if declared is types.NoneType else str(declared.__name__)
