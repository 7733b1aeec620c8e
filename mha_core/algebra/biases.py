"""Biases: numbers added to the scores, after softcap and before the mask; evaluated block by block (promise 13)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from numbers import Integral

from .arrays import Array, Namespace, is_array, move_axis, pick_pairs
from .grid import Grid, Term, check_broadcast


class Bias(Term):
    """A number for each (query, key) pair, added to the scores."""

    by_distance = False
    """Whether it depends only on key position - query position, and on the head."""


@dataclass(frozen=True, eq=False)
class ArrayBias(Bias):
    """A floating array that broadcasts to ``(..., H, L, S)``."""

    array: Array
    label = "bias"

    def block(self, grid: Grid) -> Array:
        return pick_pairs(grid.xp, self.array, grid.rows, grid.cols)

    def check(self, xp: Namespace, shape: tuple[int, ...]) -> None:
        check_broadcast("bias", self.array.shape, shape, "(..., H, L, S)")


@dataclass(frozen=True, eq=False)
class Alibi(Bias):
    """``-slope[h] * |query position - key position|``."""

    num_heads: int
    reads_query_position = True
    by_distance = True

    @property
    def slopes(self) -> list[float]:
        """2^(-8 i / n), i = 1 ... n, with n the greatest power of two up to num_heads; then the odd i of the series for 2 n."""
        n = 2 ** int(math.log2(self.num_heads))
        slopes = [2 ** (-8 * (i + 1) / n) for i in range(n)]
        return slopes + [2 ** (-4 * (2 * i + 1) / n) for i in range(self.num_heads - n)]

    def block(self, grid: Grid) -> Array:
        xp = grid.xp
        distance = xp.abs(grid.query_position - grid.key_index)
        slopes = xp.asarray(self.slopes, dtype=grid.dtype, device=grid.device)[:, None, None]
        return -slopes * xp.astype(distance, grid.dtype)

    def check(self, xp: Namespace, shape: tuple[int, ...]) -> None:
        if shape[-3] != self.num_heads:
            raise ValueError(f"alibi(num_heads={self.num_heads}): the query has {shape[-3]} heads")


@dataclass(frozen=True, eq=False)
class RelativeBias(Bias):
    """table[bucket(key position - query position), head], the table ``(buckets, H)``."""

    table: Array
    bidirectional: bool
    max_distance: int
    label = "relative_bias"
    reads_query_position = True
    by_distance = True

    def block(self, grid: Grid) -> Array:
        xp, farthest = grid.xp, self.max_distance
        by_distance = xp.take(self.table, xp.asarray(self._buckets, device=grid.device), axis=0)  # (2 max_distance + 1, H)
        distance = xp.clip(grid.key_index - grid.query_position, -farthest, farthest) + farthest
        values = xp.take(by_distance, xp.reshape(distance, (-1,)), axis=0)
        values = xp.reshape(values, (*distance.shape, self.table.shape[1]))
        if distance.ndim > 2:  # (..., 1, l, s, H): an offset for each batch element has a head axis of length 1
            values = values[..., 0, :, :, :]
        return move_axis(xp, values, -1, -3)

    @cached_property
    def _buckets(self) -> list[int]:
        """The buckets of all distances from -max_distance to max_distance, computed once for all blocks and layers."""
        return [self.bucket(distance) for distance in range(-self.max_distance, self.max_distance + 1)]

    def bucket(self, distance: int) -> int:
        """Return a distance's bucket: half of the buckets hold one distance each, the others grow by a constant ratio."""
        count = self.table.shape[0] // (2 if self.bidirectional else 1)
        exact = count // 2
        back = abs(distance) if self.bidirectional else max(-distance, 0)
        if back >= exact:
            ratio = math.log(back / exact) / math.log(self.max_distance / exact)
            back = min(exact + int(ratio * (count - exact)), count - 1)
        return back + count if self.bidirectional and distance > 0 else back

    def check(self, xp: Namespace, shape: tuple[int, ...]) -> None:
        if self.table.ndim != 2 or self.table.shape[1] != shape[-3]:
            expected = f"(buckets, {shape[-3]}), a column for each head of the query"
            raise ValueError(f"relative_bias(table) has shape {tuple(self.table.shape)}; expected {expected}")


def as_bias(bias: Bias | Array) -> Bias:
    """Return a bias unchanged, and an array as an ArrayBias; raise TypeError for anything else."""
    if isinstance(bias, Bias):
        return bias
    if is_array(bias):
        return ArrayBias(bias)
    raise TypeError(f"bias is {type(bias).__name__}; expected a bias such as alibi(num_heads), or a floating array")


def alibi(num_heads: int) -> Bias:
    """Linear biases, ``-slope * |query position - key position|``, with a slope for each head.

    Source: Press, Smith and Lewis 2022, section 3, where attention is causal and the distance never negative.
    Raises TypeError if ``num_heads`` is not an int, ValueError if it is less than 1.
    """
    if isinstance(num_heads, bool) or not isinstance(num_heads, Integral):
        raise TypeError(f"alibi(num_heads) is {type(num_heads).__name__}; expected an int")
    if num_heads < 1:
        raise ValueError(f"alibi(num_heads) is {num_heads}; expected at least 1")
    return Alibi(int(num_heads))


def relative_bias(table: Array, *, bidirectional: bool, max_distance: int) -> Bias:
    """A learned bias for each bucket of distances and each head: ``table`` is ``(buckets, H)``, floating.

    Short distances have a bucket each; longer ones share buckets whose width grows logarithmically up to
    ``max_distance``. With ``bidirectional``, half of the buckets are for keys after the query.

    Source: Raffel et al. 2020, section 2.1. Raises TypeError for a table that is not an array or a ``max_distance`` that is
    not an int, ValueError for too few buckets or too small a ``max_distance``.
    """
    if not is_array(table):
        raise TypeError(f"relative_bias(table) is {type(table).__name__}; expected a floating array (buckets, H)")
    if table.ndim != 2:
        raise ValueError(f"relative_bias(table) has shape {tuple(table.shape)}; expected (buckets, H)")
    if isinstance(max_distance, bool) or not isinstance(max_distance, Integral):
        raise TypeError(f"relative_bias(max_distance) is {type(max_distance).__name__}; expected an int")
    exact = table.shape[0] // (4 if bidirectional else 2)
    if exact < 1 or max_distance <= exact:
        raise ValueError(
            f"relative_bias: {table.shape[0]} buckets and max_distance {max_distance}; expected at least "
            f"{4 if bidirectional else 2} buckets and a max_distance above {max(exact, 1)}"
        )
    return RelativeBias(table, bidirectional, max_distance)
