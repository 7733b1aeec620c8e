"""Array-API functions that are made of others, whose derivatives then follow. Each takes the namespace first."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ..algebra.arrays import Namespace
from .shapes import axes_of as _axes_of


def matrix_transpose(xp: Namespace, x: Any) -> Any:
    return xp.permute_dims(x, (*range(x.ndim - 2), x.ndim - 1, x.ndim - 2))


def transpose(xp: Namespace, x: Any, axes: Sequence[int] | None = None) -> Any:
    return xp.permute_dims(x, tuple(range(x.ndim))[::-1] if axes is None else tuple(axes))


def swapaxes(xp: Namespace, x: Any, first: int, second: int) -> Any:
    axes = list(range(x.ndim))
    axes[first], axes[second] = axes[second], axes[first]
    return xp.permute_dims(x, tuple(axes))


def moveaxis(xp: Namespace, x: Any, source: int | tuple[int, ...], destination: int | tuple[int, ...]) -> Any:
    sources, targets = (_axes_of("moveaxis", x.ndim, each) for each in (source, destination))
    moved = dict(zip(targets, sources, strict=True))
    remaining = iter(at for at in range(x.ndim) if at not in moved.values())
    return xp.permute_dims(x, tuple(moved[at] if at in moved else next(remaining) for at in range(x.ndim)))


def expand_dims(xp: Namespace, x: Any, *, axis: int | tuple[int, ...] = 0) -> Any:
    ndim = x.ndim + (len(axis) if isinstance(axis, Sequence) else 1)
    new, sizes = _axes_of("expand_dims", ndim, axis), iter(x.shape)
    return xp.reshape(x, tuple(1 if at in new else next(sizes) for at in range(ndim)))


def squeeze(xp: Namespace, x: Any, axis: int | tuple[int, ...]) -> Any:
    axes = _axes_of("squeeze", x.ndim, axis)
    if any(x.shape[at] != 1 for at in axes):
        raise ValueError(f"squeeze(axis={axis}): shape {x.shape} has other lengths than 1 there")
    return xp.reshape(x, tuple(size for at, size in enumerate(x.shape) if at not in axes))


def unstack(xp: Namespace, x: Any, /, *, axis: int = 0) -> Any:
    front = (slice(None),) * (axis % x.ndim)
    return tuple(x[(*front, at, ...)] for at in range(x.shape[axis]))


def vecdot(xp: Namespace, x: Any, y: Any, *, axis: int = -1) -> Any:
    return xp.sum(x * y, axis=axis)


def var(xp: Namespace, x: Any, *, axis: Any = None, correction: float = 0.0, keepdims: bool = False) -> Any:
    centred = x - xp.mean(x, axis=axis, keepdims=True) if axis is not None else x - xp.mean(x)
    axes = range(x.ndim) if axis is None else (axis,) if isinstance(axis, int) else axis
    count = math.prod(x.shape[at] for at in axes)
    return xp.sum(centred * centred, axis=axis, keepdims=keepdims) / (count - correction)


def std(xp: Namespace, x: Any, *, axis: Any = None, correction: float = 0.0, keepdims: bool = False) -> Any:
    """Its derivative is 0 where all numbers are equal, as in torch."""
    square = var(xp, x, axis=axis, correction=correction, keepdims=keepdims)
    equal = square == 0
    return xp.where(equal, 0, xp.sqrt(xp.where(equal, 1, square)))


def asarray(xp: Namespace, x: Any, *, dtype: Any = None, device: Any = None, copy: bool | None = None) -> Any:
    x = xp.stack(list(x)) if isinstance(x, list | tuple) else x
    return x if dtype is None else xp.astype(x, dtype)


def tensordot(xp: Namespace, x: Any, y: Any, *, axes: int | tuple[Sequence[int], Sequence[int]] = 2) -> Any:
    axes_x, axes_y = axes if not isinstance(axes, int) else (range(x.ndim - axes, x.ndim), range(axes))
    axes_x, axes_y = ((each,) if isinstance(each, int) else each for each in (axes_x, axes_y))
    axes_x, axes_y = _axes_of("tensordot", x.ndim, tuple(axes_x)), _axes_of("tensordot", y.ndim, tuple(axes_y))
    if [x.shape[at] for at in axes_x] != [y.shape[at] for at in axes_y]:
        raise ValueError(f"tensordot: shapes {x.shape} and {y.shape} differ along the axes {axes_x} and {axes_y}")
    free_x, free_y = ([at for at in range(z.ndim) if at not in used] for z, used in ((x, axes_x), (y, axes_y)))
    count = math.prod(x.shape[at] for at in axes_x)
    rows = xp.reshape(xp.permute_dims(x, (*free_x, *axes_x)), (-1, count))
    columns = xp.reshape(xp.permute_dims(y, (*axes_y, *free_y)), (count, -1))
    return xp.reshape(xp.matmul(rows, columns), (*(x.shape[at] for at in free_x), *(y.shape[at] for at in free_y)))
