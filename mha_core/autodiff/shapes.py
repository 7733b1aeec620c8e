"""The derivatives of array-API functions that move numbers: shapes, joins, selection and indexing. Rules as in ``rules``."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from ..algebra.arrays import Array, Namespace, device_of
from ..algebra.scatter import placed, sum_at

Rule: TypeAlias = Callable[..., tuple[Any, Sequence[Callable[[Any], Any] | None] | None]]
"""Function of the namespace and arguments; returns the result and, for each argument, its gradient from that of the result."""


def _reshape(xp: Namespace, x: Any, shape: Any, **options: Any) -> Any:
    return xp.reshape(x, shape, **options), [lambda d: xp.reshape(d, x.shape)]


def _permute_dims(xp: Namespace, x: Any, axes: Sequence[int]) -> Any:
    places = tuple(sorted(range(len(axes)), key=lambda at: axes[at] % len(axes)))
    return xp.permute_dims(x, tuple(axes)), [lambda d: xp.permute_dims(d, places)]


def _broadcast_to(xp: Namespace, x: Any, shape: Any) -> Any:
    return xp.broadcast_to(x, shape), [lambda d: d]


def _flip(xp: Namespace, x: Any, *, axis: Any = None) -> Any:
    return xp.flip(x, axis=axis), [lambda d: xp.flip(d, axis=axis)]


def _roll(xp: Namespace, x: Any, shift: Any, *, axis: Any = None) -> Any:
    back = tuple(-s for s in shift) if isinstance(shift, tuple) else -shift
    return xp.roll(x, shift, axis=axis), [lambda d: xp.roll(d, back, axis=axis)]


def _concat(xp: Namespace, arrays: Sequence[Any], *, axis: int | None = 0) -> Any:
    flat = [xp.reshape(x, (-1,)) for x in arrays] if axis is None else list(arrays)
    at = 0 if axis is None else axis_of("concat", flat[0].ndim, axis)
    pulls, start = [], 0
    for x, like in zip(arrays, flat, strict=True):
        here = (*(slice(None),) * at, slice(start, start + like.shape[at]))
        pulls.append(lambda d, here=here, x=x: xp.reshape(d[(*here, ...)], x.shape))
        start += like.shape[at]
    return xp.concat(flat, axis=at), pulls


def _stack(xp: Namespace, arrays: Sequence[Any], *, axis: int = 0) -> Any:
    at = axis_of("stack", arrays[0].ndim + 1, axis)
    here = (slice(None),) * at
    return xp.stack(list(arrays), axis=axis), [lambda d, i=i: d[(*here, i, ...)] for i in range(len(arrays))]


def _astype(xp: Namespace, x: Any, dtype: Any, **options: Any) -> Any:
    y = xp.astype(x, dtype, **options)
    return y, ([lambda d: d] if xp.isdtype(y.dtype, ("real floating", "complex floating")) else None)


def _triangle(name: str) -> Rule:
    """tril and triu: the same part of the gradient."""

    def rule(xp: Namespace, x: Any, *, k: int = 0) -> Any:
        return getattr(xp, name)(x, k=k), [lambda d: getattr(xp, name)(d, k=k)]

    return rule


# selection


def axis_of(name: str, ndim: int, axis: int | None) -> int:
    """Return the axis, from 0, along which a function works; None is for arrays of one axis. Raises ValueError."""
    if (axis is None and ndim != 1) or (axis is not None and not -ndim <= axis < ndim):
        raise ValueError(f"{name}: axis is {axis}; the array has {ndim} axes")
    return 0 if axis is None else axis % ndim


def axes_of(name: str, ndim: int, axes: int | Sequence[int]) -> list[int]:
    """Return axes from 0. Raises ValueError for those that do not exist, and for one that is given twice."""
    chosen = [axis_of(name, ndim, at) for at in (axes if isinstance(axes, Sequence) else (axes,))]
    if len(set(chosen)) < len(chosen):
        raise ValueError(f"{name}: axes are {axes}; one is given twice")
    return chosen


def _indices(xp: Namespace, x: Any, indices: Any) -> Any:
    indices = xp.asarray(indices, device=device_of(x))
    return indices if 0 not in indices.shape else xp.astype(indices, xp.int64)  # that of [] is floating


def _take(xp: Namespace, x: Any, indices: Any, *, axis: int | None = None) -> Any:
    """Indices may have any number of axes."""
    at = axis_of("take", x.ndim, axis)
    indices = _indices(xp, x, indices)
    flat = xp.reshape(indices, (-1,))

    def pull(d: Any) -> Any:
        rows = xp.moveaxis(xp.reshape(d, (*x.shape[:at], flat.shape[0], *x.shape[at + 1 :])), at, 0)
        summed = sum_at(xp, xp.reshape(rows, (rows.shape[0], math.prod(rows.shape[1:]))), flat, x.shape[at])
        return xp.moveaxis(xp.reshape(summed, (x.shape[at], *rows.shape[1:])), 0, at)

    return xp.reshape(xp.take(x, flat, axis=at), (*x.shape[:at], *indices.shape, *x.shape[at + 1 :])), [pull, None]


def _take_along_axis(xp: Namespace, x: Any, indices: Any, *, axis: int = -1) -> Any:
    def pull(d: Any) -> Any:
        moved, places = (xp.moveaxis(z, axis, -1) for z in (d, indices))
        places = xp.where(places < 0, places + x.shape[axis], places)
        chosen = places[..., None] == xp.arange(x.shape[axis], device=device_of(x))
        return xp.moveaxis(xp.sum(xp.where(chosen, moved[..., None], 0), axis=-2, dtype=d.dtype), -1, axis)

    return xp.take_along_axis(x, indices, axis=axis), [pull, None]


def getitem(xp: Namespace, x: Array, key: Any) -> Any:
    """x[key], for a key of integers, slices, None and ``...``; of one array of integers and whole axes; or of several, which
    begin with the first axis.
    """
    keys = tuple(
        _indices(xp, x, each) if isinstance(each, list) else each for each in (key if isinstance(key, tuple) else (key,))
    )
    arrays = [at for at, each in enumerate(keys) if is_array_like(each)]
    if not arrays:
        return x[keys], [lambda d: placed(xp, d, keys, tuple(x.shape))]
    (at, *more), others = arrays, [each for each in keys if not is_array_like(each)]
    index = keys[at]
    has_rule = all(each is Ellipsis or each == slice(None) for each in others) and not (more and arrays[-1] >= len(arrays))
    if not has_rule or any(not xp.isdtype(keys[each].dtype, "integral") for each in arrays):
        raise TypeError(
            "an index of a boolean array, or of arrays and numbers, has no rule for gradients: "
            "use arrays of integers, one for each of the first axes, or where"
        )
    if more:
        sizes, numbers = x.shape[: len(arrays)], 0
        for size, each in zip(sizes, keys, strict=False):
            numbers = numbers * size + xp.where(each < 0, each + size, each)
        value, pulls = _take(xp, xp.reshape(x, (math.prod(sizes), *x.shape[len(arrays) :])), numbers, axis=0)
        return value, [lambda d: xp.reshape(pulls[0](d), x.shape)]
    axis = at - len(keys) + x.ndim if Ellipsis in others[:at] else at
    return _take(xp, x, index, axis=axis)


def is_array_like(x: Any) -> bool:
    return hasattr(x, "shape") and hasattr(x, "dtype")


SHAPES: dict[str, Rule] = {
    "reshape": _reshape,
    "permute_dims": _permute_dims,
    "broadcast_to": _broadcast_to,
    "flip": _flip,
    "roll": _roll,
    "concat": _concat,
    "stack": _stack,
    "astype": _astype,
    "take": _take,
    "take_along_axis": _take_along_axis,
    **{name: _triangle(name) for name in ("tril", "triu")},
}
