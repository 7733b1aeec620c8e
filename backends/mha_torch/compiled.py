"""torch.compile: each call of ours is one step of the graph.

torch cannot follow the choice of a kernel, so ``nonstrict_trace`` records the call as it is. Later torch traces what the chosen
kernel does with tensors, forward and backward. The graph has no gap, the compiler sees the operations inside the kernel, and no
custom operator with a fake implementation and a gradient of its own is needed.

torch accepts a flat list of tensors and numbers as arguments. A description, which contains neither, says how the layers, masks
and options are made of them.
"""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from types import FunctionType
from typing import Any, NamedTuple

import torch
from torch.utils import _pytree

from mha_core import Int8Rows, KeyValueCache
from mha_core.plugin import Step, is_overridden

_PLAIN = (bool, str, bytes, torch.dtype, torch.device, type(None), FunctionType)
_SYMBOLS = {torch.SymInt: int, torch.SymFloat: float}
_LEAF = "leaf"
"""The description of a tensor, an int or a float. torch may trace a number that changes from call to call as a symbol."""
_ERROR = "error"
"""Begins the description of a call that raised an error."""


class Unsupported(TypeError):
    """A value that cannot be part of a graph."""


class _Packed:
    """The tensors and numbers in a value, and its description."""

    def __init__(self, leaves: list[Any], description: Any) -> None:
        self.leaves, self.description = leaves, description


_pytree.register_pytree_node(
    _Packed,
    lambda packed: (packed.leaves, packed.description),
    lambda leaves, description: _Packed(list(leaves), description),
)


def call(step: Any, /, *arguments: Any, **options: Any) -> Any:
    """Return the result of a step, as torch.compile traces it."""
    if is_overridden():
        return _call_overridden(step, arguments, options)
    leaves: list[Any] = []
    cache: Any = options.get("cache")
    of_cache = _arrays_of(cache)
    try:
        description = step.number, _described(arguments, leaves), _described(options | of_cache, leaves)
    except Unsupported:
        return _call_unsupported(step, arguments, options)
    result = _traced(_Packed(leaves, description))
    if result.description[0] is _ERROR:  # torch shows an error that is raised here, and replaces one that is raised there
        raise RuntimeError(result.description[1])
    out = _made(result.description, iter(result.leaves))
    if of_cache:
        out, key, value, cache.filled = out
        cache.key, cache.value = (rows[0] if len(rows) == 1 else Int8Rows(*rows) for rows in (key, value))
    return out


@torch._dynamo.nonstrict_trace
def _traced(packed: _Packed) -> _Packed:
    number, *descriptions = packed.description
    leaves = iter(packed.leaves)
    arguments, options = (_made(description, leaves) for description in descriptions)
    results: list[Any] = []
    try:
        cache: Any = options.get("cache")
        if isinstance(cache, _CacheArrays):
            cache = options["cache"] = KeyValueCache(**cache._asdict())
        out = Step.every[number](*arguments, **options)
        if cache is not None:  # torch makes no object of a class that it receives
            out = (
                out,
                *((rows.values, rows.scale) if cache.dtype else (rows,) for rows in (cache.key, cache.value)),
                cache.filled,
            )
        return _Packed(results, _described(out, results))
    except Exception as error:
        if torch._guards.TracingContext.try_get() is None:  # not while torch traces: a graph for debugging runs this function
            raise
        return _Packed([], (_ERROR, f"{type(error).__name__}: {error}"))


class _CacheArrays(NamedTuple):
    """The arrays of a cache of a fixed capacity, as a graph takes them.

    The weights that they were computed with are not among them, and are not compared again.
    """

    key: Any
    value: Any
    filled: Any
    capacity: int
    dtype: str | None


def _arrays_of(cache: Any) -> dict[str, _CacheArrays]:
    """Return the option ``cache`` of a call as a graph takes it; nothing for a cache that grows, or another value."""
    if type(cache) is not KeyValueCache or cache.capacity is None or cache.context is not None:
        return {}
    filled = torch.asarray(cache.length) if cache.filled is None else cache.filled
    return {"cache": _CacheArrays(cache.key, cache.value, filled, cache.capacity, cache.dtype)}


def _outside(reason: str) -> Any:
    """Return a function that calls a step outside the graph. torch shows the reason if that is not allowed."""
    disable: Any = torch.compiler.disable
    return disable(lambda step, arguments, options: step(*arguments, **options), reason=reason)


_call_overridden = _outside(
    "explain, verify, use_backend or use_kernel is in force in some thread, and compiled code does not see them"
)
_call_unsupported = _outside(
    "an argument cannot be part of a graph: a cache without capacity, a mask or layer that is not a frozen dataclass, or other"
)


def _described(value: Any, leaves: list[Any]) -> Any:
    """Return the description of a value, and append its tensors and numbers to ``leaves``."""
    kind = type(value)
    if isinstance(value, torch.Tensor) or kind in (int, float, torch.SymInt, torch.SymFloat):
        leaves.append(value)
        return _LEAF
    if kind in _PLAIN:
        return "value", value
    if kind in (tuple, list) or (issubclass(kind, tuple) and hasattr(kind, "_fields")):
        return kind, tuple([_described(each, leaves) for each in value])
    if kind is slice:
        return kind, tuple([_described(each, leaves) for each in (value.start, value.stop, value.step)])
    if kind is dict:
        return kind, tuple(value), tuple([_described(each, leaves) for each in value.values()])
    if is_dataclass(kind) and kind.__dataclass_params__.frozen:  # type: ignore[attr-defined]
        names = tuple([field.name for field in fields(value) if field.init])
        return kind, names, tuple([_described(getattr(value, name), leaves) for name in names])
    raise Unsupported(kind)


def _made(description: Any, leaves: Any) -> Any:
    """Return the value that has this description and these leaves."""
    if description is _LEAF:
        leaf = next(leaves)
        return _SYMBOLS[type(leaf)](leaf) if type(leaf) in _SYMBOLS else leaf  # the graph is for this number only
    kind, *details = description
    if kind == "value":
        return details[0]
    parts = [_made(each, leaves) for each in details[-1]]
    if len(details) == 2:
        named = dict(zip(details[0], parts, strict=True))
        return named if kind is dict else kind(**named)
    return kind(parts) if kind in (tuple, list) else kind(*parts)
