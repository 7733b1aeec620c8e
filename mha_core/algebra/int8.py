"""Numbers in int8: weights of linear maps, whose products of integers add up exactly, and rows of keys and values.

Every step is one operation of IEEE arithmetic in a given order, so all libraries get the same numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self, TypeAlias

from .arrays import Array, Namespace, compute_dtype
from .tiles import pieces

GROUP = 64
"""The number of neighbouring inputs that share a scale: a large one makes the steps of its group coarse, and no others."""
_LARGEST = 127
_LEAST = 2.0**-120
"""Numbers below it are taken as 0: 127 / x would overflow in float32."""


@dataclass(frozen=True, eq=False)
class _Int8:
    """Integers with scales: a number is about its integer times its scale."""

    values: Array
    scale: Array

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of ``values``."""
        return tuple(self.values.shape)

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return self.values.ndim

    def __repr__(self) -> str:
        return f"{type(self).__name__}{self.shape}"

    def __reduce__(self) -> Any:
        return type(self), (self.values, self.scale)


@dataclass(frozen=True, eq=False, repr=False)
class Int8Weight(_Int8):
    """The weight of a linear map in int8, for inference: column j of the weight is about ``values[:, j] * scale[j]``.

    ``linear`` and what is made of it take it in place of an array ``w``; ``quantize_weight`` makes it. Its arrays must not be
    written to: kernels keep them in another order.

    >>> import numpy as np, mha_core as mha
    >>> mha.quantize_weight(np.asarray([[1.0, 0.5], [-2.0, 0.25]])).values
    array([[  64,  127],
           [-127,   64]], dtype=int8)
    """

    values: Array
    """(n, m), int8, from -127 to 127."""
    scale: Array
    """(m,), in the dtype that the map computes in."""

    @cached_property
    def cache(self) -> dict[str, Any]:
        """What kernels keep beside the weight, by their names, such as its values in another order. It ends with the weight."""
        return {}

    def _check(self) -> None:
        """Raise ValueError unless the shapes are those of a weight and its scales."""
        if self.values.ndim != 2 or not self.values.shape[0]:
            raise ValueError(f"values has shape {self.shape}; expected (n, m) with n at least 1")
        if tuple(self.scale.shape) != self.shape[1:]:
            raise ValueError(f"scale has shape {tuple(self.scale.shape)}; expected (m,) = {self.shape[1:]}")


Weight: TypeAlias = Array | Int8Weight
"""The weight of a linear map."""


@dataclass(frozen=True, eq=False, repr=False)
class Int8Rows(_Int8):
    """Keys or values in int8, for inference: row i is about ``values[i, :] * scale[i, 0]``.

    Attention takes them in place of the arrays ``key`` and ``value``; ``quantize_rows`` makes them.

    >>> import numpy as np, mha_core as mha
    >>> mha.quantize_rows(np.asarray([[1.0, 0.5], [-2.0, 0.25]])).values
    array([[ 127,   64],
           [-127,   16]], dtype=int8)
    """

    values: Array
    """(..., n, D), int8, from -127 to 127."""
    scale: Array
    """(..., n, 1), float32, or float64 beside a query in float64."""

    def map(self, function: Callable[[Any], Any]) -> Self:
        """Return the rows that ``function`` makes of ``values`` and of ``scale``."""
        return type(self)(function(self.values), function(self.scale))

    def __getitem__(self, index: Any) -> Self:
        """Return some of the rows; the index must not select among the last axis."""
        return self.map(lambda x: x[index])

    def widened(self, xp: Namespace, dtype: Any) -> Array:
        """Return the rows as numbers of a dtype, in which the products are computed."""
        return xp.astype(self.values, dtype) * xp.astype(self.scale, dtype, copy=False)


Rows: TypeAlias = Array | Int8Rows
"""Keys or values."""


def map_rows(x: Rows, function: Callable[[Any], Any]) -> Any:
    """Return ``function(x)``; of int8 rows, the rows that it makes of their values and their scales."""
    return x.map(function) if isinstance(x, Int8Rows) else function(x)


def arrays_of(named: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return arrays by name; in place of an Int8Weight ``w``, its ``w.values`` and ``w.scale``."""
    if Int8Weight not in map(type, named.values()):
        return named
    arrays: dict[str, Any] = {}
    for name, x in named.items():
        arrays |= {f"{name}.values": x.values, f"{name}.scale": x.scale} if isinstance(x, Int8Weight) else {name: x}
    return arrays


def quantize_weight(xp: Namespace, w: Array) -> Int8Weight:
    """Return a weight with a scale for each column."""
    integers, scale = rounded(xp, xp.astype(w, compute_dtype(xp, w.dtype), copy=False), 0)
    return Int8Weight(xp.astype(integers, xp.int8), xp.astype(scale[0, :], w.dtype, copy=False))


def quantize_rows(xp: Namespace, x: Array) -> Int8Rows:
    """Return rows with a scale for each."""
    integers, scale = rounded(xp, xp.astype(x, compute_dtype(xp, x.dtype), copy=False), -1)
    return Int8Rows(xp.astype(integers, xp.int8), scale)


def rounded(xp: Namespace, x: Array, axis: int) -> tuple[Array, Array]:
    """Return integers from -127 to 127 in the dtype of x, and their scales, with ``axis`` of length 1: x is about the product.

    With t = max |x| along the axis: integers = round(x (127 / t)), ties to even, and scale = t / 127. All integers are 0, and
    the scale is NaN, where NaN or infinity is among the numbers.
    """
    broken = xp.any(~xp.isfinite(x), axis=axis, keepdims=True)
    x = xp.where(broken, 0, x)
    top = xp.max(xp.abs(x), axis=axis, keepdims=True)
    is_zero = top < _LEAST
    largest = xp.ones_like(top) * _LARGEST  # some libraries multiply by a rounded inverse where one of two numbers is Python's
    factor = xp.where(is_zero, 0, largest / xp.where(is_zero, 1, top))
    return xp.round(x * factor), xp.where(broken, math.nan, top / largest)


def linear_int8(xp: Namespace, x: Array, w: Int8Weight, b: Array | None) -> Array:
    """(sum over groups of (integers of x) (values) * scale of x) * scale of w + b, added in the order of the groups.

    The product of a group is exact in float32: 64 * 127^2 < 2^24.
    """
    wide, total = compute_dtype(xp, x.dtype), None
    for inputs in pieces(range(w.shape[0]), GROUP):
        integers, scale = rounded(xp, xp.astype(x[..., inputs.start : inputs.stop], wide, copy=False), -1)
        part = xp.matmul(integers, xp.astype(w.values[inputs.start : inputs.stop, :], wide)) * scale
        total = part if total is None else total + part
    assert total is not None
    y = total * xp.astype(w.scale, wide, copy=False)
    return xp.astype(y if b is None else y + xp.astype(b, wide, copy=False), x.dtype, copy=False)
