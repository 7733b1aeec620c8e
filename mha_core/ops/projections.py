"""The projections of multi-head attention: heads from inputs and weights, and the checks of these weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from ..algebra.arrays import Array, Namespace, move_axis, split_axis
from . import check
from .functional import linear

HeadNorm: TypeAlias = Callable[[Array], Array]
"""Function of heads (..., heads, L, d); returns them normalized over d."""


def heads(xp: Namespace, y: Array, count: int) -> Array:
    """(..., length, count * d) -> (..., count, length, d)."""
    return move_axis(xp, split_axis(xp, y, -1, (count, y.shape[-1] // count)), -2, -3)


def normed_heads(xp: Namespace, x: Array, w: Array, b: Array | None, count: int, norm: HeadNorm | None) -> Array:
    """Return the heads of x w + b, normalized."""
    y = heads(xp, linear(x, w, b), count)
    return y if norm is None else norm(y)


Projection: TypeAlias = tuple[str, Array, tuple[str, Array], int]
"""Name, weight, (name, array) that it projects, and the number of heads."""


def check_heads(num_heads: int, num_kv_heads: int) -> None:
    """Raise TypeError or ValueError unless both are ints of at least 1, and the first is a multiple of the second."""
    for name, count in (("num_heads", num_heads), ("num_kv_heads", num_kv_heads)):
        if isinstance(count, bool) or not isinstance(count, int):
            raise TypeError(f"{name} is {type(count).__name__}; expected an int")
        if count < 1 or num_heads % count:
            raise ValueError(f"{name} is {count}; expected an int of at least 1 that divides num_heads = {num_heads}")


def check_head_dim(w_q: Array, w_k: Array, num_heads: int, num_kv_heads: int) -> None:
    """Raise ValueError unless w_q (d, h * d_k) and w_k (d, kv * d_k) make heads of as many features."""
    if w_q.shape[-1] * num_kv_heads != w_k.shape[-1] * num_heads:
        raise ValueError(
            f"w_q makes heads of {w_q.shape[-1] // num_heads} features, but w_k of {w_k.shape[-1] // num_kv_heads}: "
            f"w_q {tuple(w_q.shape)} for {num_heads} heads, w_k {tuple(w_k.shape)} for {num_kv_heads}"
        )


def check_projections(projections: tuple[Projection, ...], num_heads: int) -> None:
    """Check the weights of queries, keys and, if given, values, in this order."""
    check_heads(num_heads, projections[1][3])
    for w_name, w, (name, inputs), count in projections:
        check.ndim(name, inputs, 2, "(..., length, features)")
        if w.ndim != 2 or w.shape[0] != inputs.shape[-1] or w.shape[1] % count:
            raise ValueError(
                f"{w_name} has shape {tuple(w.shape)}; expected ({inputs.shape[-1]}, {count} * d): a row for each feature of "
                f"{name}, and columns that divide into {count} heads"
            )
    (_, w_q, _, _), (_, w_k, _, num_kv_heads), *_ = projections
    check_head_dim(w_q, w_k, num_heads, num_kv_heads)
