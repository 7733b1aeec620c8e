"""Arrays inside other values: in masks and biases, layers, tuples and mappings.

A value holds others if it is a mapping, a tuple, a list or a frozen dataclass such as a layer. Other objects, such as backends
and caches, are not looked into.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from functools import cache
from typing import Any, TypeAlias

from ..algebra.arrays import is_array

Path: TypeAlias = tuple[Any, ...]
"""The keys, indices and fields that lead to an array inside a value."""


def children(value: Any) -> dict[Any, Any] | None:
    """Return what a value holds, by key, index or field; None for an array, or a value that holds no others."""
    if is_array(value):
        return None
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, tuple | list):
        return dict(enumerate(value))
    names = _fields_of(type(value))  # type: ignore[arg-type]
    return None if names is None else {name: getattr(value, name) for name in names}


@cache
def _fields_of(kind: type) -> tuple[str, ...] | None:
    """Return the fields that a frozen dataclass is made of; None for another type."""
    if not is_dataclass(kind) or not kind.__dataclass_params__.frozen:  # type: ignore[attr-defined]
        return None
    return tuple(field.name for field in fields(kind) if field.init)


def _with_children(value: Any, old: Mapping[Any, Any], new: Mapping[Any, Any]) -> Any:
    """Return a value that holds others in place of its own, all of them; the same object if none differs."""
    changed = {key: each for key, each in new.items() if each is not old[key]}
    if not changed:
        return value
    if isinstance(value, Mapping):
        return dict(new)
    if isinstance(value, tuple | list):
        make = getattr(type(value), "_make", type(value))  # of named tuples
        return make(new.values())
    return replace(value, **changed)


def arrays_in(value: Any) -> Iterator[Any]:
    """Yield every array in a value, in order."""
    if is_array(value):
        yield value
    for each in (children(value) or {}).values():
        yield from arrays_in(each)


def holds(value: Any, kind: type) -> bool:
    """Return whether a value, or one inside it, is of a type."""
    return isinstance(value, kind) or any(holds(each, kind) for each in (children(value) or {}).values())


def map_arrays(value: Any, function: Callable[[Any], Any]) -> Any:
    """Return the same value with ``function`` applied to every array in it."""
    return map_placed(value, lambda path, x: function(x))


def map_placed(value: Any, function: Callable[[Path, Any], Any], path: Path = (), *, learned: bool = False) -> Any:
    """Return the same value with ``function(path, array)`` in place of every array.

    ``learned``: the fields that a layer's class calls ``fixed`` are left out, and stay as they are.
    """
    if is_array(value):
        return function(path, value)
    inside = children(value)
    if inside is None:
        return value
    left_out = getattr(value, "fixed", ()) if learned else ()
    new = {
        key: each if key in left_out else map_placed(each, function, (*path, key), learned=learned)
        for key, each in inside.items()
    }
    return _with_children(value, inside, new)


def placed_arrays(value: Any, *, learned: bool = False) -> dict[Path, Any]:
    """Return every array in a value by its path; ``learned``: as in ``map_placed``."""
    arrays: dict[Path, Any] = {}
    map_placed(value, lambda path, x: arrays.setdefault(path, x), learned=learned)
    return arrays


def dotted(path: Path) -> str:
    """Return the name of an array: its path as text, such as ``layers.0.attention.w_q``; "" for an array by itself.

    Two arrays may have one name, for example those of the keys 0 and "0".
    """
    return ".".join(map(str, path))
