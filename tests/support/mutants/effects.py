"""Functions that mutated modules call: what the operators alias, keep, round and beyond do while the module runs."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

OURS = ("mha_core", "mha_numpy", "mha_torch")

happened: set[str] = set()
"""Events of this process: "ran", if changed code ran; "effect", if an effect changed something."""


def ran(x: Any = None) -> Any:
    """Return x, and note that changed code ran."""
    happened.add("ran")
    return x


def first(index: Any) -> Any:
    """Return 0 for an integer, as many from the start for a slice or range, the same for each element of a tuple."""
    new = _first(index)
    if new is not index and new != index:
        happened.add("effect")
    return new


def _first(index: Any) -> Any:
    match index:
        case int() | np.integer():
            return 0
        case slice(start=int(start), stop=int(stop), step=step):
            return slice(0, stop - start, step) if stop >= start >= 0 else index
        case slice(start=int(start), stop=None):
            return slice(0, -start) if start > 0 else index
        case range():
            return range(0, len(index) * index.step, index.step)
        case tuple():
            return tuple(map(_first, index))
    return index


def kept(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that calls another one once for arguments of the same shapes, and returns that result again."""
    results: dict[Any, Any] = {}

    @functools.wraps(function)
    def keeps(*arguments: Any, **options: Any) -> Any:
        key = _key((arguments, tuple(sorted(options.items()))))
        if key in results:
            happened.add("effect")
        else:
            results[key] = function(*arguments, **options)
        return results[key]

    return keeps


def rounded(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that rounds the floating arrays in another one's result to float16."""

    @functools.wraps(function)
    def rounds(*arguments: Any, **options: Any) -> Any:
        happened.add("effect")
        return _map(_half, function(*arguments, **options))

    return rounds


def turned_beyond(edge: int) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator: if an axis of an argument is longer than ``edge``, rows of the result are in a wrong order."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def turns(*arguments: Any, **options: Any) -> Any:
            is_beyond = any(max(x.shape, default=0) > edge for x in _arrays((arguments, *options.values())))
            result = function(*arguments, **options)
            if not is_beyond:
                return result
            happened.add("effect")
            return _map(_turned, result)

        return turns

    return decorate


EFFECTS = {f"_mutant_{function.__name__}": function for function in (ran, first, kept, rounded, turned_beyond)}
"""By the names that mutated modules use."""


def _is_array(x: Any) -> bool:
    return isinstance(getattr(x, "shape", None), tuple) and not isinstance(x, np.generic)


def _parts(x: Any) -> list[Any]:
    """Return what an object consists of: items, or values of the attributes of our own classes."""
    if isinstance(x, (tuple, list)):
        return list(x)
    if isinstance(x, dict):
        return list(x.values())
    if not type(x).__module__.startswith(OURS):
        return []
    names = [name for kind in type(x).__mro__ for name in vars(kind).get("__slots__", ())]
    return [*vars(x).values()] if hasattr(x, "__dict__") else [getattr(x, name, None) for name in names]


def _leaves(x: Any, depth: int = 4) -> Iterator[Any]:
    """Yield what an object consists of, to a depth: arrays, simple values, and the names of the types around them."""
    if _is_array(x) or x is None or isinstance(x, (str, int, float, range, frozenset, type)) or callable(x) or not depth:
        yield x
    else:
        yield type(x).__name__
        for part in _parts(x):
            yield from _leaves(part, depth - 1)


def _arrays(x: Any) -> Iterator[Any]:
    return filter(_is_array, _leaves(x))


def _key(x: Any) -> Any:
    """Return a key that arguments of the same shapes share."""
    simple = (str, int, float, range, frozenset, type(None))
    return tuple(
        (tuple(leaf.shape), str(leaf.dtype)) if _is_array(leaf) else leaf if isinstance(leaf, simple) else id(leaf)
        for leaf in _leaves(x)
    )


def _map(function: Callable[[Any], Any], result: Any) -> Any:
    if _is_array(result):
        return function(result)
    if isinstance(result, tuple):
        parts = [_map(function, x) for x in result]
        return type(result)(*parts) if hasattr(result, "_fields") else tuple(parts)
    return result


def _half(x: Any) -> Any:
    if isinstance(x, np.ndarray):
        return x.astype(np.float16).astype(x.dtype) if x.dtype.kind == "f" else x
    return x.half().to(x.dtype) if x.is_floating_point() else x


def _turned(x: Any) -> Any:
    if not x.shape:
        return x
    axis = -2 if len(x.shape) > 1 else -1
    return np.roll(x, 1, axis) if isinstance(x, np.ndarray) else x.roll(1, axis)
