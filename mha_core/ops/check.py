"""What is asked of arguments before any work is done (promises 10 and 15)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..algebra.arrays import Array
from ..dispatch.backend import LoadedBackend
from ..dispatch.errors import BackendMismatch
from ..dispatch.selection import backend_of


def arrays(*, optional: Mapping[str, Array | None] | None = None, **named: Array) -> LoadedBackend:
    """The backend of these arrays: floating, all of one library, one device and one dtype; an optional one may be None."""
    given = named | {name: x for name, x in (optional or {}).items() if x is not None}
    backend = backend_of(given)
    names = iter(given)
    first = next(names)
    like = given[first]
    if not backend.is_floating(like.dtype):
        wanted = cast(backend, first, f"{backend.xp.__name__}.float32")
        raise TypeError(f"{first} has dtype {like.dtype}; expected a floating dtype: write {wanted}")
    for name in names:
        x = given[name]
        if x.dtype != like.dtype:
            wanted = cast(backend, name, f"{first}.dtype")
            raise TypeError(f"{name} has dtype {x.dtype}, but {first} has {like.dtype}: write {wanted}")
        same_device(name, x, first, like)
    return backend


def cast(backend: LoadedBackend, name: str, dtype: str) -> str:
    """The conversion to write."""
    return f"{name} = {backend.xp.__name__}.astype({name}, {dtype})"


def same_device(name: str, x: Array, first: str, like: Array) -> None:
    """Raise BackendMismatch where two arrays live on different devices."""
    if x.device != like.device:
        raise BackendMismatch(
            f"{name} is on device {x.device}, but {first} is on {like.device}: move it there first, nothing is copied silently"
        )


def companions(like: Array, named: Mapping[str, Array], *, first: str = "query") -> None:
    """The arrays inside masks, biases and options: of the library and on the device of another, the query."""
    if named:
        backend_of({first: like, **named})
        for name, x in named.items():
            same_device(name, x, first, like)


def ndim(name: str, x: Array, least: int, layout: str) -> None:
    """Raise ValueError where an array has too few axes."""
    if x.ndim < least:
        raise ValueError(f"{name} has shape {tuple(x.shape)}; expected at least {least} axes, {layout}")


def shape(name: str, x: Array | None, expected: tuple[int, ...], meaning: str) -> None:
    """Raise ValueError where an array that was given has not the very shape expected."""
    if x is not None and tuple(x.shape) != expected:
        raise ValueError(f"{name} has shape {tuple(x.shape)}; expected {meaning} = {expected}")


def size(name: str, value: Any) -> None:
    """Raise TypeError where a size is no int, ValueError where it is negative."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} is {type(value).__name__}; expected an int")
    if value < 0:
        raise ValueError(f"{name} is {value}; expected an int of at least 0")


def number(name: str, value: Any, *, above_zero: bool = False) -> float:
    """A host number as float. Raises TypeError for anything else, ValueError for NaN, or where it must be above zero."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} is {type(value).__name__}; expected a float")
    if value != value or (above_zero and value <= 0):
        raise ValueError(f"{name} is {value}; expected {'a float above zero' if above_zero else 'a number'}")
    return float(value)
