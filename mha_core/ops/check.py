"""Checks of shapes, numbers, indices and dtypes before any work is done (promise 15)."""

from __future__ import annotations

import math
from collections.abc import Iterable
from numbers import Integral, Real
from typing import Any

from ..algebra.arrays import Array, Index, is_array
from ..algebra.grid import FARTHEST
from ..algebra.int8 import Weight
from ..dispatch.backend import LoadedBackend


def ndim(name: str, x: Array, least: int, layout: str) -> None:
    """Raise ValueError if an array has too few axes."""
    if x.ndim < least:
        raise ValueError(f"{name} has shape {tuple(x.shape)}; expected at least {least} axes, {layout}")


def shape(name: str, x: Weight | None, expected: tuple[int, ...], meaning: str) -> None:
    """Raise ValueError if an array that was given does not have the expected shape."""
    if x is not None and tuple(x.shape) != expected:
        raise ValueError(f"{name} has shape {tuple(x.shape)}; expected {meaning} = {expected}")


def features(name: str, x: Array, size: int, meaning: str) -> None:
    """Raise ValueError if the last axis of a layer's input does not have this size."""
    if x.shape[-1] != size:
        raise ValueError(f"{name} has {x.shape[-1]} features; this layer takes {size} ({meaning})")


def integer(name: str, value: Any, least: int) -> int:
    """Return a host integer as int. Raises TypeError for anything else, ValueError below ``least``."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError(f"{name} is {type(value).__name__}; expected an int")
    if value < least:
        raise ValueError(f"{name} is {value}; expected an int of at least {least}")
    return int(value)


def number(name: str, value: Any, *, above_zero: bool = False) -> float:
    """Return a host number as float. Raises TypeError for anything else, ValueError if it is not finite or not above zero."""
    if type(value) is not float and (isinstance(value, bool) or not isinstance(value, Real)):
        raise TypeError(f"{name} is {type(value).__name__}; expected a float")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number) or (above_zero and number < TINY):
        raise ValueError(f"{name} is {value}; expected {'a float above zero' if above_zero else 'a finite number'}")
    return number


def at_least_zero(name: str, value: Any) -> float:
    """Return a host number as float. Raises TypeError for anything else, ValueError unless it is finite and at least 0."""
    converted = number(name, value)
    if converted < 0:
        raise ValueError(f"{name} is {value}; expected a number of at least 0")
    return converted


def below_one(name: str, value: Any) -> float:
    """Return a host number as float. Raises TypeError for anything else, ValueError unless it is at least 0 and below 1."""
    converted = number(name, value)
    if not 0 <= converted < 1:
        raise ValueError(f"{name} is {value}; expected at least 0 and below 1")
    return converted


def offset(value: Any) -> int | Array:
    """Return a query offset, an int or an array. Raises TypeError for anything else."""
    if isinstance(value, bool):
        raise TypeError("query_offset is bool; expected an int, or integers of the batch shape")
    if isinstance(value, Integral):
        if abs(int(value)) > FARTHEST:
            raise ValueError(f"query_offset is {value}; expected an int from -2**62 to 2**62")
        return int(value)
    if not is_array(value):
        raise TypeError(f"query_offset is {type(value).__name__}; expected integers, as an array of the query's library")
    return value


def index(name: str, value: Any, length: int) -> Index:
    """Return a slice or a sequence of indices, which may be negative, as indices from 0. Raises TypeError or IndexError."""
    if isinstance(value, slice):
        return range(length)[value]
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise TypeError(f"{name} is {type(value).__name__}; expected a slice, or a sequence of ints such as [{value}]")
    chosen = tuple(integer(f"{name}[{at}]", i, -length) for at, i in enumerate(value))
    if any(not -length <= i < length for i in chosen):
        raise IndexError(f"{name} contains an index out of range; there are {length}")
    return tuple(i % length for i in chosen)


TINY = 2.0**-126  # the smallest normal float32; these numbers are divisors


def floating(backend: LoadedBackend, dtype: Any, default: str | None = "float32") -> Any:
    """Return a floating dtype of the backend, given as the dtype or its name; None means the default.

    Raises TypeError for a name that the backend lacks, and for a dtype that is not floating.
    """
    dtype = default if dtype is None else dtype
    resolved = getattr(backend.xp, dtype, None) if isinstance(dtype, str) else dtype
    if dtype is not None and (resolved is None or not _is_floating(backend, resolved)):
        raise TypeError(f"dtype is {dtype!r}; expected float32, float64 or another floating dtype of {backend.name}")
    return resolved


def _is_floating(backend: LoadedBackend, dtype: Any) -> bool:
    try:
        return backend.is_floating(dtype)
    except (TypeError, AttributeError):  # not a dtype at all
        return False
