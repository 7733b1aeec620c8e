"""The type of an array, and helpers that the array-API standard lacks.

Every function of the algebra takes the array-API namespace ``xp`` first (https://data-apis.org/array-api);
no array library is named or looked up here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from numbers import Number
from types import ModuleType
from typing import Any, Protocol, Self, TypeAlias, TypeGuard

Namespace: TypeAlias = Any
"""An array-API namespace: a module, or any object with its functions."""

Index: TypeAlias = range | tuple[int, ...]
"""Indices of queries or keys."""


class Array(Protocol):
    """The part of an array-API array that the algebra uses."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def ndim(self) -> int: ...
    @property
    def dtype(self) -> Any: ...
    def __getitem__(self, key: Any, /) -> Self: ...
    def __add__(self, other: Any, /) -> Self: ...
    def __radd__(self, other: Any, /) -> Self: ...
    def __sub__(self, other: Any, /) -> Self: ...
    def __rsub__(self, other: Any, /) -> Self: ...
    def __mul__(self, other: Any, /) -> Self: ...
    def __rmul__(self, other: Any, /) -> Self: ...
    def __truediv__(self, other: Any, /) -> Self: ...
    def __rtruediv__(self, other: Any, /) -> Self: ...
    def __floordiv__(self, other: Any, /) -> Self: ...
    def __matmul__(self, other: Any, /) -> Self: ...
    def __neg__(self) -> Self: ...
    def __and__(self, other: Any, /) -> Self: ...
    def __or__(self, other: Any, /) -> Self: ...
    def __invert__(self) -> Self: ...
    def __eq__(self, other: Any, /) -> Self: ...  # type: ignore[override]
    def __lt__(self, other: Any, /) -> Self: ...
    def __le__(self, other: Any, /) -> Self: ...
    def __gt__(self, other: Any, /) -> Self: ...
    def __ge__(self, other: Any, /) -> Self: ...


@dataclass(frozen=True, eq=False)
class DynamicRange:
    """Successive indices whose first is an array, known only when a compiled loop runs."""

    start: Array
    size: int
    slice: Callable[[Array, Array, int, int], Array]
    """The library's function (x, start, size, axis) for ``size`` elements of an array from ``start`` along an axis."""

    def __len__(self) -> int:
        return self.size

    def shifted(self, by: int) -> DynamicRange:
        """Return the same number of indices, ``by`` further."""
        return DynamicRange(self.start + by, self.size, self.slice)


AnyIndex: TypeAlias = Index | DynamicRange
"""Indices of queries or keys, in a loop that a library compiles too."""


def is_array(x: object) -> TypeGuard[Array]:
    """Return whether x looks like an array; 50 times faster than isinstance with the protocol, which matters in every call."""
    # NumPy's scalars are numbers; numpy itself has functions dtype and shape, and numpy.float32 has such attributes
    return hasattr(x, "dtype") and hasattr(x, "shape") and not isinstance(x, Number | ModuleType | type)


def device_of(x: Array) -> Any:
    """Return the device of an array; None for one without, such as a tracer, which represents arrays of any device."""
    return getattr(x, "device", None)


def device_name(x: Array) -> str:
    """Return the name of an array's device; "" for one without a device, or whose device has no name."""
    device = device_of(x)
    return "" if device is None or " object at 0x" in str(device) else str(device)


def dtype_name(dtype: Any) -> str:
    """Return the name of a dtype in the array API standard: "float32" also for one that its library writes library.float32."""
    return (dtype.__name__ if isinstance(dtype, type) else str(dtype)).rpartition(".")[2]


def compute_dtype(xp: Namespace, dtype: Any) -> Any:
    """Return float64 for float64 and wider types, float32 for narrower ones (promises 2 and 9)."""
    if dtype == xp.float32:
        return xp.float32
    return xp.float64 if dtype == xp.float64 or xp.finfo(dtype).bits >= 64 else xp.float32


def as_integers(xp: Namespace, x: Array) -> Array:
    """Return x in the default integer type, so that sums with positions neither overflow nor mix with unsigned types."""
    return xp.astype(x, xp.arange(0).dtype, copy=False)


def integers(xp: Namespace, values: Iterable[int], device: Any) -> Array:
    """Return host integers as an array of the namespace's default integer type, also if there are none."""
    return xp.asarray(list(values), dtype=xp.arange(0).dtype, device=device)


def index_array(xp: Namespace, index: AnyIndex, device: Any) -> Array:
    """Return an index as an array of the namespace's default integer type."""
    if isinstance(index, DynamicRange):
        return xp.arange(index.size, device=device) + index.start
    if isinstance(index, range):
        return xp.arange(index.start, index.stop, index.step, device=device)
    return integers(xp, index, device)


def bounds(index: AnyIndex) -> tuple[int, int]:
    """Return the smallest and the largest member of a non-empty index. Raises TypeError if they are not known yet."""
    if isinstance(index, DynamicRange):
        raise TypeError("the bounds of these indices are known only when the loop runs")
    if isinstance(index, range):
        return min(index[0], index[-1]), max(index[0], index[-1])
    return min(index), max(index)


def pick(xp: Namespace, x: Array, index: AnyIndex, axis: int) -> Array:
    """Return ``x`` at ``index`` along ``axis`` (counted from the end); a view if the index is an ascending range."""
    if isinstance(index, DynamicRange):
        return index.slice(x, index.start, index.size, axis)
    if isinstance(index, range) and index.step > 0:
        return x[(..., slice(index.start, index.stop, index.step), *(slice(None),) * (-axis - 1))]
    return xp.take(x, integers(xp, index, device_of(x)), axis=axis)


def at_least(xp: Namespace, x: Array, ndim: int) -> Array:
    """Return ``x`` with axes of length 1 in front, so that it has at least ``ndim`` axes."""
    return x if x.ndim >= ndim else xp.reshape(x, (1,) * (ndim - x.ndim) + tuple(x.shape))


def pick_pairs(xp: Namespace, x: Array, rows: AnyIndex, cols: AnyIndex) -> Array:
    """Return the block ``rows`` x ``cols`` of ``x``, which broadcasts to (..., L, S); axes of length 1 keep broadcasting."""
    x = at_least(xp, x, 2)
    if None not in x.shape[-2:] and (rows, cols) == tuple(map(range, x.shape[-2:])):
        return x  # some libraries copy what they slice, even all of it
    if isinstance(rows, range) and isinstance(cols, range) and rows.step == cols.step == 1 and 1 not in x.shape[-2:]:
        return x[..., rows.start : rows.stop, cols.start : cols.stop]
    x = x if x.shape[-2] == 1 else pick(xp, x, rows, -2)
    return x if x.shape[-1] == 1 else pick(xp, x, cols, -1)


def broadcast_shapes(*shapes: Sequence[int]) -> tuple[int, ...]:
    """Return the shape that ``shapes`` broadcast to, by NumPy's rules; raise ValueError if there is none."""
    ndim = max(map(len, shapes), default=0)
    padded = [(1,) * (ndim - len(shape)) + tuple(shape) for shape in shapes]
    result = []
    for sizes in zip(*padded, strict=True):
        wide = [size for size in sizes if size != 1]
        if any(size != wide[0] for size in wide):
            raise ValueError(f"shapes {', '.join(str(tuple(s)) for s in shapes)} do not broadcast together")
        result.append(wide[0] if wide else 1)
    return tuple(result)


def move_axis(xp: Namespace, x: Array, source: int, target: int) -> Array:
    """Return ``x`` with one axis moved, both counted from the end; a permutation, since torch.func has a rule for it."""
    axes = list(range(x.ndim))
    axes.insert(x.ndim + target, axes.pop(x.ndim + source))
    return xp.permute_dims(x, tuple(axes))


def split_axis(xp: Namespace, x: Array, axis: int, sizes: tuple[int, ...]) -> Array:
    """Return ``x`` with one axis, counted from the end, reshaped into several."""
    at = x.ndim + axis
    return xp.reshape(x, (*x.shape[:at], *sizes, *x.shape[at + 1 :]))


def sum_to(xp: Namespace, x: Array, shape: Sequence[int]) -> Array:
    """Return ``x`` summed over the axes along which ``shape`` broadcasts to its shape: the gradient of broadcasting."""
    if tuple(x.shape) == tuple(shape):
        return x
    extra = x.ndim - len(shape)
    wide = tuple(axis for axis in range(x.ndim) if axis < extra or (shape[axis - extra] == 1 and x.shape[axis] != 1))
    return xp.reshape(xp.sum(x, axis=wide, dtype=x.dtype) if wide else x, tuple(shape))


def without_gradient(xp: Namespace, x: Array) -> Array:
    """Return x as a constant to libraries that differentiate what they compute, if the namespace has ``stop_gradient``."""
    return _stop_gradient(xp)(x)


@cache
def _stop_gradient(xp: Namespace) -> Callable[[Any], Any]:
    return getattr(xp, "stop_gradient", None) or (lambda x: x)


def replace_rows(xp: Namespace, x: Any, start: Array, rows: Any) -> Any:
    """Return x (..., S, D) with other rows from ``start`` on, an integer array (); those that do not fit are left out."""
    at = xp.arange(x.shape[-2], device=device_of(x)) - start
    count = rows.shape[-2]
    spread = xp.take(rows, xp.clip(at, 0, count - 1), axis=-2)
    return xp.where(((at >= 0) & (at < count))[:, None], spread, x)


def write_rows(x: Any, start: int, rows: Any) -> Any:
    """Return x (..., S, D) with other rows from ``start`` on, written into x: for libraries whose arrays can be changed."""
    x[..., start : start + rows.shape[-2], :] = rows
    return x
