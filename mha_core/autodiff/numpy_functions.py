"""NumPy's own functions of recorded arrays, with NumPy's parameters and defaults, by functions of the array API.

NumPy calls these for arrays of any library that ask for it (its ``__array_function__`` protocol).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any


def call(space: Any, function: Callable[..., Any], arguments: Sequence[Any], options: Mapping[str, Any]) -> Any:
    """Return NumPy's ``function`` of the arguments in the namespace ``space`` of recorded arrays.

    Raises TypeError, which names the function, for one that has no rule, and for parameters without a rule.
    """
    name = f"{function.__module__}.{function.__name__}"
    own = _OWN.get(function.__name__)
    if own is None and not hasattr(space, function.__name__):
        raise TypeError(f"{name} of an array whose gradient is recorded: there is no rule for its derivative")
    if own is None:
        return getattr(space, function.__name__)(*arguments, **options)
    parameters, known = _parameters(function), _parameters(own)
    given = inspect.Signature(list(parameters.values())).bind(*arguments, **options).arguments
    given = {key: x for key, x in given.items() if x is not parameters[key].default}
    if unknown := [f"{key}=" for key in given if key not in known]:
        raise TypeError(f"{name} with {', '.join(unknown)} of an array whose gradient is recorded: there is no rule for it")
    return own(space, **given)


@cache
def _parameters(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    return inspect.signature(function).parameters


def _reduction(name: str) -> Callable[..., Any]:
    return lambda space, a, axis=None, keepdims=False: getattr(space, name)(a, axis=axis, keepdims=keepdims)


def _spread(name: str) -> Callable[..., Any]:
    """var and std: ``ddof`` is an older name of ``correction``."""

    def spread(space: Any, a: Any, axis: Any = None, ddof: float = 0, keepdims: bool = False, correction: Any = None) -> Any:
        if ddof and correction is not None:
            raise ValueError(f"{name}: both ddof and correction are given; expected one of them")
        return getattr(space, name)(a, axis=axis, keepdims=keepdims, correction=ddof if correction is None else correction)

    return spread


def _sum(space: Any, a: Any, axis: Any = None, dtype: Any = None, keepdims: bool = False) -> Any:
    return space.sum(a, axis=axis, dtype=dtype, keepdims=keepdims)


def _cumsum(space: Any, a: Any, axis: int | None = None, dtype: Any = None) -> Any:
    a = space.reshape(a, (-1,)) if axis is None else a
    return space.cumulative_sum(a, axis=0 if axis is None else axis, dtype=dtype)


def _take(space: Any, a: Any, indices: Any, axis: int | None = None) -> Any:
    a = space.reshape(a, (-1,)) if axis is None else a
    return space.take(a, indices, axis=0 if axis is None else axis)


def _take_along_axis(space: Any, arr: Any, indices: Any, axis: int | None = -1) -> Any:
    arr = space.reshape(arr, (-1,)) if axis is None else arr
    return space.take_along_axis(arr, indices, axis=0 if axis is None else axis)


def _clip(space: Any, a: Any, a_min: Any = ..., a_max: Any = ..., min: Any = ..., max: Any = ...) -> Any:
    older, newer = ([x for x in pair if x is not ...] for pair in ((a_min, a_max), (min, max)))
    if len(older) == 1 or (older and newer):
        raise TypeError("clip: expected a_min and a_max together, or min and max")
    return space.clip(a, *(older or (None if x is ... else x for x in (min, max))))


def _where(space: Any, condition: Any, x: Any = None, y: Any = None) -> Any:
    if x is None or y is None:
        raise TypeError("where of one array whose gradient is recorded has no rule: give both x and y")
    return space.where(condition, x, y)


def _squeeze(space: Any, a: Any, axis: int | tuple[int, ...] | None = None) -> Any:
    return space.squeeze(a, tuple(at for at, size in enumerate(a.shape) if size == 1) if axis is None else axis)


def _roll(space: Any, a: Any, shift: Any, axis: Any = None) -> Any:
    shift, axis = (tuple(x) if isinstance(x, list) else x for x in (shift, axis))
    return space.roll(a, shift, axis=axis)


_OWN: dict[str, Callable[..., Any]] = {
    "sum": _sum,
    **{name: _reduction(name) for name in ("mean", "max", "min", "prod", "amax", "amin")},
    **{name: _spread(name) for name in ("var", "std")},
    "cumsum": _cumsum,
    "cumulative_sum": lambda space, x, axis=None, dtype=None, include_initial=False: space.cumulative_sum(
        x, axis=axis, dtype=dtype, include_initial=include_initial
    ),
    "astype": lambda space, x, dtype, copy=True: space.astype(x, dtype, copy=copy),
    "take": _take,
    "take_along_axis": _take_along_axis,
    "clip": _clip,
    "where": _where,
    "reshape": lambda space, a, shape: space.reshape(a, shape),
    "transpose": lambda space, a, axes=None: space.transpose(a, axes),
    "swapaxes": lambda space, a, axis1, axis2: space.swapaxes(a, axis1, axis2),
    "moveaxis": lambda space, a, source, destination: space.moveaxis(a, source, destination),
    "squeeze": _squeeze,
    "expand_dims": lambda space, a, axis: space.expand_dims(a, axis=axis),
    "broadcast_to": lambda space, array, shape: space.broadcast_to(array, shape),
    "flip": lambda space, m, axis=None: space.flip(m, axis=axis),
    "roll": _roll,
    "concatenate": lambda space, arrays, axis=0: space.concat(arrays, axis=axis),
    "stack": lambda space, arrays, axis=0: space.stack(arrays, axis=axis),
    **{name: lambda space, m, k=0, name=name: getattr(space, name)(m, k=k) for name in ("tril", "triu")},
    "tensordot": lambda space, a, b, axes=2: space.tensordot(a, b, axes=axes),
}
"""By NumPy's name: a function of the namespace and of those parameters of NumPy's that have a rule. Others have one form."""
