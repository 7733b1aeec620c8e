"""Biases: numbers added to the scores, after softcap and before the mask; evaluated block by block (promise 13)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from numbers import Integral
from typing import Any, Protocol

from .arrays import Array, Namespace, at_least, is_array, move_axis, pick_pairs, sum_to
from .block_sum import BlockSum
from .diagonals import skewed
from .grid import Grid, Term, check_broadcast, not_a_term
from .parts import Part, PartOf


class BiasSum(Protocol):
    """The gradient of a bias's array, summed over blocks of scores."""

    def add(self, grid: Grid, d: Array) -> Array | None:
        """Add the gradient of a block of scores, (..., H, len(grid.rows), len(grid.cols)).

        A lazy library computes what this returns, such as the sum so far, before the next block; None is ignored.
        """

    def whole(self, device: Any) -> Array:
        """Return the sum, in the shape and dtype of the array."""


class Bias(Term):
    """A number for each (query, key) pair, added to the scores.

    A class of your own defines ``block``, and works everywhere; for gradients of an array in it, also ``sum``.
    """

    feature = "bias_term"
    """The feature that a kernel must declare. A subclass has its own, or this one, since its numbers may differ."""
    by_distance = False
    """True if it depends only on key position - query position, and on the head."""
    is_added = True
    """False if it changes scores otherwise than by adding to them; ``block`` then raises TypeError."""

    def __init_subclass__(cls) -> None:
        cls.feature = vars(cls).get("feature", Bias.feature)

    def added(self, scores: Array, grid: Grid) -> Array:
        """Return a block of scores, (..., H, len(grid.rows), len(grid.cols)), with the bias added."""
        return scores + grid.xp.astype(self.block(grid), scores.dtype, copy=False)

    def pullback(self, scores: Array, grid: Grid, *, of_arrays: bool) -> tuple[Array, Callable[[Array], tuple[Array, Any]]]:
        """Return ``added(scores, grid)``, and a function from its gradient to that of the scores, and to what ``sum`` adds up.

        ``of_arrays``: whether the latter is wanted.
        """
        return self.added(scores, grid), lambda d: (d, d)

    def part(self, xp: Namespace, part: Part) -> Bias:
        """Return the bias of a part of the problem, in the part's indices."""
        return self if self.by_distance and part.is_dense and part.heads is None else PartOfBias(self, part)

    def sum(self, xp: Namespace) -> BiasSum:
        """Return the sum that becomes the gradient of this bias's array. Raises TypeError if there is no rule for it."""
        raise TypeError(f"{type(self).__name__} has no rule for the gradient of its arrays: define its method sum(xp)")


@dataclass(frozen=True, eq=False)
class PartOfBias(PartOf, Bias):
    inner: Bias
    place: Part


@dataclass(frozen=True, eq=False)
class ArrayBias(Bias):
    """A floating array that broadcasts to ``(..., H, L, S)``."""

    array: Array
    label = feature = "bias"

    def block(self, grid: Grid) -> Array:
        return pick_pairs(grid.xp, self.array, grid.rows, grid.cols)

    def part(self, xp: Namespace, part: Part) -> Bias:
        return replace(self, array=part.pairs(xp, self.array))

    def check(self, xp: Namespace, shape: tuple[int, ...]) -> None:
        check_broadcast("bias", self.array.shape, shape, "(..., H, L, S)")

    def sum(self, xp: Namespace) -> BiasSum:
        return _ArraySum(xp, self.array)


class _ArraySum:
    """The gradient of an array bias: that of the scores, summed over the axes along which the array broadcasts."""

    def __init__(self, xp: Namespace, array: Array) -> None:
        self.xp, self.array = xp, array
        self._sum = BlockSum(xp, at_least(xp, array, 2).shape)

    def add(self, grid: Grid, d: Array) -> Array:
        assert isinstance(grid.rows, range) and isinstance(grid.cols, range)
        return self._sum.add(grid.rows, grid.cols, d)

    def whole(self, device: Any) -> Array:
        return self.xp.reshape(self._sum.whole(self.array.dtype, device), self.array.shape)


@dataclass(frozen=True, eq=False)
class Alibi(Bias):
    """``-slope[h] * |query position - key position|``."""

    num_heads: int
    feature = "alibi"
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
    label = feature = "relative_bias"
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

    def part(self, xp: Namespace, part: Part) -> Bias:
        if part.heads is None or not part.is_dense:
            return super().part(xp, part)
        return replace(self, table=part.over_heads(xp, self.table, -1))

    def sum(self, xp: Namespace) -> BiasSum:
        return _TableSum(xp, self)


class _TableSum:
    """The gradient of a table of relative biases: that of the scores, summed over the pairs of each bucket and head."""

    def __init__(self, xp: Namespace, bias: RelativeBias) -> None:
        self.xp, self.bias = xp, bias
        self._sum: Array | None = None

    def add(self, grid: Grid, d: Array) -> Array:
        """Sum over diagonals, along which the distance is the same, then over the distances of each bucket."""
        assert isinstance(grid.rows, range) and isinstance(grid.cols, range)
        xp = self.xp
        diagonals = xp.sum(skewed(xp, xp.flip(d, axis=-2)), axis=-2)  # (..., H, l + s - 1), the nearest key first
        first = Grid(
            xp, grid.device, range(grid.rows[-1], grid.rows[0] - 1, -1), range(grid.cols[0], grid.cols[0] + 1), grid.offset
        )
        last = Grid(xp, grid.device, range(grid.rows[0], grid.rows[0] + 1), grid.cols, grid.offset)
        distance = xp.concat(
            [xp.matrix_transpose(first.key_index - first.query_position), (last.key_index - last.query_position)[..., 1:]],
            axis=-1,
        )
        farthest = self.bias.max_distance
        distance = xp.clip(distance, -farthest, farthest) + farthest  # (..., 1, l + s - 1)
        buckets = xp.take(xp.asarray(self.bias._buckets, device=grid.device), xp.reshape(distance, (-1,)), axis=0)
        buckets = xp.reshape(buckets, (*distance.shape[:-3], distance.shape[-1], 1))
        number = xp.arange(self.bias.table.shape[0], device=grid.device)
        table = xp.matmul(diagonals, xp.astype(buckets == number, d.dtype))  # (..., H, buckets)
        table = xp.matrix_transpose(sum_to(xp, table, tuple(reversed(self.bias.table.shape))))
        self._sum = table if self._sum is None else self._sum + table
        return self._sum

    def whole(self, device: Any) -> Array:
        xp, table = self.xp, self.bias.table
        if self._sum is None:
            return xp.zeros(table.shape, dtype=table.dtype, device=device)
        return xp.astype(self._sum, table.dtype, copy=False)


def as_bias(bias: Bias | Array) -> Bias:
    """Return a bias unchanged, and an array as an ArrayBias; raise TypeError for anything else."""
    if isinstance(bias, Bias):
        return bias
    if is_array(bias):
        return ArrayBias(bias)
    raise not_a_term("bias", bias, "a bias such as alibi(num_heads), or a floating array")


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
