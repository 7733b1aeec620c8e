"""The projections of multi-head attention: heads from inputs and weights, and the checks of these weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from ..algebra.arrays import Array, Namespace, move_axis, split_axis
from ..algebra.int8 import Weight
from . import check
from .functional import linear

HeadNorm: TypeAlias = Callable[[Array], Array]
"""Function of heads (..., heads, L, d); returns them normalized over d."""


def heads(xp: Namespace, x: Array, w: Weight, b: Array | None, count: int, norm: HeadNorm | None = None) -> Array:
    """Return the heads (..., count, length, d) of x w + b, normalized."""
    y = linear(x, w, b)
    y = move_axis(xp, split_axis(xp, y, -1, (count, y.shape[-1] // count)), -2, -3)
    return y if norm is None else norm(y)


class Projection(NamedTuple):
    """The projection x w + b into heads, and the norm of each head."""

    name: str
    """The argument that ``w`` is."""
    input_name: str
    """The argument that ``x`` is."""
    x: Array
    w: Weight
    b: Array | None
    num_heads: int
    norm: HeadNorm | None = None

    def heads(self, xp: Namespace) -> Array:
        return heads(xp, self.x, self.w, self.b, self.num_heads, self.norm)


def check_heads(num_heads: int, num_kv_heads: int) -> None:
    """Raise TypeError or ValueError unless both are ints of at least 1, and the first is a multiple of the second."""
    for name, count in (("num_heads", num_heads), ("num_kv_heads", num_kv_heads)):
        if isinstance(count, bool) or not isinstance(count, int):
            raise TypeError(f"{name} is {type(count).__name__}; expected an int")
        if count < 1 or num_heads % count:
            raise ValueError(f"{name} is {count}; expected an int of at least 1 that divides num_heads = {num_heads}")


def check_head_dim(w_q: Weight, w_k: Weight, num_heads: int, num_kv_heads: int) -> None:
    """Raise ValueError unless w_q (d, h * d_k) and w_k (d, kv * d_k) make heads of as many features."""
    if w_q.shape[-1] * num_kv_heads != w_k.shape[-1] * num_heads:
        raise ValueError(
            f"w_q makes heads of {w_q.shape[-1] // num_heads} features, but w_k of {w_k.shape[-1] // num_kv_heads}: "
            f"w_q {tuple(w_q.shape)} for {num_heads} heads, w_k {tuple(w_k.shape)} for {num_kv_heads}"
        )


def check_projections(queries: Projection, keys: Projection, values: Projection | None = None) -> None:
    """Check the weights of queries, keys and, if given, values, in this order."""
    check_heads(queries.num_heads, keys.num_heads)
    for p in (queries, keys) if values is None else (queries, keys, values):
        check.ndim(p.input_name, p.x, 2, "(..., length, features)")
        if p.w.ndim != 2 or p.w.shape[1] % p.num_heads:
            raise ValueError(
                f"{p.name} has shape {tuple(p.w.shape)}; expected ({p.x.shape[-1]}, {p.num_heads} * d): a row for each feature "
                f"of {p.input_name}, and columns that divide into {p.num_heads} heads"
            )
        check.features(p.input_name, p.x, p.w.shape[0], "d_model" if p is queries else f"d_context, the rows of {p.name}")
    check_head_dim(queries.w, keys.w, queries.num_heads, keys.num_heads)
