"""What is asked of arguments before any work is done (promises 10 and 15)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from numbers import Integral, Real
from typing import Any

from ..algebra.arrays import Array, Index, device_of
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
    if backend.record.current_device is not None:
        current_device(backend.name, first, like, backend.record.current_device())
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
    here, there = device_of(x), device_of(like)
    if here != there and here is not None and there is not None:
        raise BackendMismatch(
            f"{name} is on device {here}, but {first} is on {there}: move it there first, nothing is copied silently"
        )


def current_device(backend: str, name: str, x: Array, current: Any) -> None:
    """Raise BackendMismatch where a library computes on its current device, and an array lives on another."""
    here = device_of(x)
    if here != current and here is not None:
        raise BackendMismatch(
            f"{name} is on device {here}, but {backend} computes on its current device, {current}: "
            f"make the device of {name} the current one first"
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


def integer(name: str, value: Any, least: int) -> int:
    """A host integer as int. Raises TypeError for anything else, ValueError below ``least``."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError(f"{name} is {type(value).__name__}; expected an int")
    if value < least:
        raise ValueError(f"{name} is {value}; expected an int of at least {least}")
    return int(value)


def number(name: str, value: Any, *, above_zero: bool = False) -> float:
    """A host number as float. Raises TypeError for anything else, ValueError where it is not finite, or must be above zero."""
    if type(value) is not float and (isinstance(value, bool) or not isinstance(value, Real)):
        raise TypeError(f"{name} is {type(value).__name__}; expected a float")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number) or (above_zero and number < TINY):
        raise ValueError(f"{name} is {value}; expected {'a float above zero' if above_zero else 'a number'}")
    return number


def index(name: str, value: Any, length: int) -> Index:
    """A slice or a sequence of indices, those from the end too, as indices from 0. Raises TypeError or IndexError."""
    if isinstance(value, slice):
        return range(length)[value]
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise TypeError(f"{name} is {type(value).__name__}; expected a slice, or a sequence of ints such as [{value}]")
    chosen = tuple(integer(f"{name}[{at}]", i, -length) for at, i in enumerate(value))
    if any(not -length <= i < length for i in chosen):
        raise IndexError(f"{name} holds an index out of range: there are {length}")
    return tuple(i % length for i in chosen)


TINY = 2.0**-126  # the smallest normal float32: one divides by such a number


def floating(backend: LoadedBackend, dtype: Any, default: str | None = "float32") -> Any:
    """A floating dtype of the backend, from itself or its name; None stands for the default.

    Raises TypeError for a name that the backend does not have, and for a dtype that is not floating.
    """
    dtype = default if dtype is None else dtype
    found = getattr(backend.xp, dtype, None) if isinstance(dtype, str) else dtype
    if dtype is not None and (found is None or not _is_floating(backend, found)):
        raise TypeError(f"dtype is {dtype!r}; expected float32, float64 or another floating dtype of {backend.xp.__name__}")
    return found


def _is_floating(backend: LoadedBackend, dtype: Any) -> bool:
    try:
        return backend.is_floating(dtype)
    except (TypeError, AttributeError):  # what is no dtype at all
        return False
