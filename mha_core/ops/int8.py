"""Linear maps of int8 weights, and keys and values in int8, for inference."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from ..algebra import int8
from ..algebra.arrays import Array, compute_dtype, dtype_name
from ..algebra.int8 import Int8Rows, Int8Weight, Rows
from ..algebra.state import AttentionState
from ..dispatch.backend import LoadedBackend
from ..dispatch.selection import check_floating, check_same_device
from . import check
from .composite import composite
from .elementary import Examined
from .operation import Operation

NO_GRADIENTS = "int8 weights are for inference, and have no gradients: train the layer that was quantized"
"""The message of the TypeError if gradients are recorded: those of rounded numbers are 0."""

NO_GRADIENTS_OF_ROWS = "int8 keys and values are for inference, and have no gradients: give arrays of floating numbers"
"""Likewise, for attention."""


def quantize_weight(w: Array) -> Int8Weight:
    """Return the weight w (n, m) of a linear map in int8, with a scale for each of its m columns.

    A column is rounded to multiples of its largest absolute value / 127. ``linear`` then rounds each 64 neighbouring features
    of a row of x in the same way, adds up products of integers exactly, and multiplies by the scales. A column that holds NaN
    or infinity has the scale NaN.

    Source: Dettmers et al. 2022, section 3.1, where a row has one scale. Raises TypeError for a weight that is not floating, or
    if gradients are recorded; ValueError for one that does not have two axes.

    >>> import numpy as np, mha_core as mha
    >>> w = mha.quantize_weight(np.asarray([[1.0, 0.5], [-2.0, 0.25]]))
    >>> mha.linear(np.asarray([[1.0, 1.0]]), w).round(3)
    array([[-0.992,  0.752]])
    """
    backend = check_floating(w=w)
    if backend.plain is not None:
        raise TypeError(NO_GRADIENTS)
    if w.ndim != 2 or 0 in w.shape:
        raise ValueError(f"w has shape {tuple(w.shape)}; expected (n, m), both at least 1")
    return int8.quantize_weight(backend.xp, w)


def quantize_rows(x: Array) -> Int8Rows:
    """Return keys or values x (..., n, D) in int8, with a scale for each row; attention takes them as ``key`` and ``value``.

    A row is rounded to multiples of its largest absolute value / 127, so a number moves by half of that at most. A row that
    holds NaN or infinity has the scale NaN.

    Raises TypeError for an array that is not floating, or if gradients are recorded; ValueError for one with fewer than two
    axes, or without features.

    >>> import numpy as np, mha_core as mha
    >>> x = np.eye(2)
    >>> rows = mha.quantize_rows(x)
    >>> mha.scaled_dot_product_attention(x, rows, rows).round(3)
    array([[0.67, 0.33],
           [0.33, 0.67]])
    """
    backend = check_floating(x=x)
    if backend.plain is not None:
        raise TypeError(NO_GRADIENTS_OF_ROWS)
    if x.ndim < 2 or not x.shape[-1]:
        raise ValueError(f"x has shape {tuple(x.shape)}; expected (..., n, D) with D at least 1")
    return int8.quantize_rows(backend.xp, x)


def _examine(x: Array, w: Int8Weight, b: Array | None) -> Examined:
    backend = check_floating(x=x, w=w, optional={"b": b})
    if backend.plain is not None or backend.features([x, w.values, w.scale, b]) & {"gradient", "forward_gradient"}:
        raise TypeError(NO_GRADIENTS)
    w._check()
    check.ndim("x", x, 1, "(..., features)")
    if w.shape[0] != x.shape[-1]:
        raise ValueError(f"w has shape {w.shape}; expected (n, m) with n = {x.shape[-1]}, the features of x")
    check.shape("b", b, w.shape[1:], "(m,)")
    return Examined(backend, partial(int8.linear_int8, backend.xp), (*x.shape[:-1], w.shape[1]))


linear_int8 = composite("linear_int8", lambda x, w, b: {"x": x, "w": w, "b": b}, _examine, smaller_operations=False)


# attention whose keys and values are int8 rows


def check_rows(backend: LoadedBackend, name: str, x: Int8Rows, query: Array) -> None:
    """Raise TypeError or ValueError unless keys or values in int8 fit each other and the query."""
    check_same_device(query, [(f"{name}.values", x.values), (f"{name}.scale", x.scale)])
    if x.values.dtype != backend.xp.int8:
        raise TypeError(f"{name}.values has dtype {x.values.dtype}; expected int8: write {name}=mha.quantize_rows({name})")
    wide = compute_dtype(backend.xp, query.dtype)
    if x.scale.dtype != wide:
        raise TypeError(
            f"{name}.scale has dtype {x.scale.dtype}; expected {dtype_name(wide)}: quantize {name} in the query's dtype"
        )
    expected = (*x.shape[:-1], 1)
    if tuple(x.scale.shape) != expected:
        raise ValueError(f"{name}.scale has shape {tuple(x.scale.shape)}; expected {expected}, a number for each row")


def widened(operation: Operation, backend: LoadedBackend, options: Mapping[str, Any], *arrays: Any) -> AttentionState:
    """Return attention whose keys and values are widened at once, by a kernel that does not read int8."""
    xp, (query, key, value, sink, *scales) = backend.xp, arrays
    wide = compute_dtype(xp, query.dtype)
    key, value = (Int8Rows(x, scale).widened(xp, wide) for x, scale in zip((key, value), scales, strict=True))
    sink = None if sink is None else xp.astype(sink, wide, copy=False)
    state: AttentionState = operation(xp.astype(query, wide, copy=False), key, value, sink, **options)
    return AttentionState(xp.astype(state.out, query.dtype, copy=False), state.lse)


def joining_scales(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of the arrays that ``int8_arrays`` returns, which calls one of a query, int8 rows and a sink."""

    def joined(query: Array, key: Array, value: Array, sink: Array | None, key_scale: Array, value_scale: Array) -> Any:
        return function(query, Int8Rows(key, key_scale), Int8Rows(value, value_scale), sink)

    return joined


def int8_arrays(query: Array, key: Rows, value: Rows, sink: Array | None) -> tuple[Any, ...]:
    """Return the arrays of a call of which key and value are int8 rows. Raises TypeError if only one of them is."""
    if isinstance(key, Int8Rows) and isinstance(value, Int8Rows):
        return query, key.values, value.values, sink, key.scale, value.scale
    kinds = f"key is {type(key).__name__}, value is {type(value).__name__}"
    raise TypeError(f"{kinds}: expected arrays, or Int8Rows for both, as quantize_rows makes them")
