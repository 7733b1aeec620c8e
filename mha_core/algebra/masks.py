"""The kinds of masks: predicates over a query's position and a key's index."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, groupby
from numbers import Integral
from operator import index as as_index
from typing import Any

from .arrays import (
    AnyIndex,
    Array,
    DynamicRange,
    Namespace,
    as_integers,
    bounds,
    index_array,
    integers,
    is_array,
    pick,
    pick_pairs,
)
from .expressions import Mask, as_mask
from .grid import FARTHEST, Grid, Relation, check_integers, over_heads
from .parts import Part, step_of


@dataclass(frozen=True, eq=False)
class Band(Mask):
    """low <= key position - query position <= high; None: no limit."""

    low: int | None
    high: int | None
    reads_query_position = True

    def block(self, grid: Grid) -> Array:
        q, k = grid.query_position, grid.key_index
        if self.low is None and self.high is None:
            return q == q
        if self.low is None:
            return k <= q + self.high
        if self.high is None:
            return k >= q + self.low
        return (k >= q + self.low) & (k <= q + self.high)

    def relation(self, grid: Grid) -> Relation:
        if grid.query_bounds is None:
            return Relation.SOME
        (q_min, q_max), (k_min, k_max) = grid.query_bounds, grid.key_bounds
        least, most = k_min - q_max, k_max - q_min
        if (self.low is not None and most < self.low) or (self.high is not None and least > self.high):
            return Relation.NONE
        inside = (self.low is None or least >= self.low) and (self.high is None or most <= self.high)
        return Relation.ALL if inside else Relation.SOME

    def part(self, xp: Namespace, part: Part) -> Mask:
        if part.is_dense:
            return self
        if part.step is None or not isinstance(part.offset, int):
            return super().part(xp, part)
        assert isinstance(part.rows, range) and isinstance(part.cols, range)
        # low <= shift + step (key - query) <= high in the part's indices
        shift = part.cols.start - part.rows.start - part.offset
        return Band(
            None if self.low is None else -((shift - self.low) // part.step),
            None if self.high is None else (self.high - shift) // part.step,
        )


@dataclass(frozen=True, eq=False)
class Chunks(Mask):
    """Query and key are in the same chunk of ``size`` positions."""

    size: int
    reads_query_position = True

    def block(self, grid: Grid) -> Array:
        return grid.query_position // self.size == grid.key_index // self.size

    def relation(self, grid: Grid) -> Relation:
        if grid.query_bounds is None:
            return Relation.SOME
        q, k = ({p // self.size for p in pair} for pair in (grid.query_bounds, grid.key_bounds))
        return _same_interval(q, k)

    def part(self, xp: Namespace, part: Part) -> Mask:
        begins_a_chunk = part.is_dense and isinstance(part.cols, range) and part.cols.start % self.size == 0
        return self if begins_a_chunk else super().part(xp, part)


@dataclass(frozen=True, eq=False)
class KeyLengths(Mask):
    """key index < n, with one n for all or one for each batch element."""

    n: int | Array
    label = "key_lengths"

    def block(self, grid: Grid) -> Array:
        return grid.key_index < (self.n if isinstance(self.n, int) else over_heads(as_integers(grid.xp, self.n)))

    def relation(self, grid: Grid) -> Relation:
        if not isinstance(self.n, int):
            return Relation.SOME
        low, high = grid.key_bounds
        return Relation.ALL if high < self.n else Relation.NONE if low >= self.n else Relation.SOME

    def part(self, xp: Namespace, part: Part) -> Mask:
        cols = part.cols
        if isinstance(self.n, int) and isinstance(cols, range):
            return KeyLengths(len(range(cols.start, min(self.n, cols.stop), cols.step)))
        step, n = step_of(cols), self.n if isinstance(self.n, int) else as_integers(xp, self.n)
        return KeyLengths((n - cols.start + (step - 1)) // step)

    def check(self, xp: Namespace, shape: tuple[int, ...]) -> None:
        if not isinstance(self.n, int):
            check_integers(xp, "key_lengths(n)", self.n, shape[:-3], "the batch shape")


@dataclass(frozen=True, eq=False)
class Segments(Mask):
    """The query's id equals the key's; ids are ``(..., L)`` and ``(..., S)``."""

    query_ids: Array
    key_ids: Array
    label = "segments"

    def block(self, grid: Grid) -> Array:
        q, k = (as_integers(grid.xp, ids) for ids in (self.query_ids, self.key_ids))
        rows = pick_pairs(grid.xp, q[..., None, :, None], grid.rows, range(1))
        return rows == pick_pairs(grid.xp, k[..., None, None, :], range(1), grid.cols)

    def part(self, xp: Namespace, part: Part) -> Mask:
        return Segments(pick(xp, self.query_ids, part.rows, -1), pick(xp, self.key_ids, part.cols, -1))

    def check(self, xp: Namespace, shape: tuple[int, ...]) -> None:
        *batch, _, queries, keys = shape
        check_integers(xp, "segments(query_ids)", self.query_ids, (*batch, queries), "(..., L)")
        check_integers(xp, "segments(key_ids)", self.key_ids, (*batch, keys), "(..., S)")


@dataclass(frozen=True, eq=False)
class Packed(Mask):
    """Sequences laid end to end; pairs of the same sequence attend."""

    lengths: tuple[int, ...]

    @cached_property
    def ends(self) -> list[int]:
        return list(accumulate(self.lengths))

    def _ids(self, grid: Grid, index: AnyIndex) -> Array:
        if isinstance(index, DynamicRange):
            ends = integers(grid.xp, self.ends, grid.device)
            return grid.xp.searchsorted(ends, index_array(grid.xp, index, grid.device), side="right")
        return grid.xp.asarray([bisect_right(self.ends, i) for i in index], device=grid.device)

    def block(self, grid: Grid) -> Array:
        return self._ids(grid, grid.rows)[:, None] == self._ids(grid, grid.cols)[None, :]

    def relation(self, grid: Grid) -> Relation:
        q, k = ({bisect_right(self.ends, i) for i in bounds(index)} for index in (grid.rows, grid.cols))
        return _same_interval(q, k)

    def part(self, xp: Namespace, part: Part) -> Mask:
        return self if part.rows == part.cols == range(sum(self.lengths)) else super().part(xp, part)

    def check(self, xp: Namespace, shape: tuple[int, ...]) -> None:
        for name, size in (("queries", shape[-2]), ("keys", shape[-1])):
            if sum(self.lengths) != size:
                raise ValueError(f"packed(lengths): the lengths add up to {sum(self.lengths)}, but there are {size} {name}")


def runs(lengths: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """Yield (start, count, length) of each run of adjacent sequences of equal length, for sequences laid end to end."""
    start = 0
    for length, group in groupby(lengths):
        count = len(list(group))
        yield start, count, length
        start += count * length


def _same_interval(q: set[int], k: set[int]) -> Relation:
    """Compare two intervals of sequence or chunk numbers: NONE if they are disjoint, ALL if both are the same single number."""
    if max(q) < min(k) or max(k) < min(q):
        return Relation.NONE
    return Relation.ALL if q == k and len(q) == 1 else Relation.SOME


def _size(name: str, value: Any, least: int, or_array: str = "") -> int:
    try:
        size = as_index(value)
    except TypeError:
        raise TypeError(f"{name} is {type(value).__name__}; expected an int{or_array}") from None
    if isinstance(value, bool) or not least <= size <= FARTHEST:
        raise ValueError(f"{name} is {value!r}; expected an int of at least {least} and at most 2**62")
    return size


def causal() -> Mask:
    """Key position <= query position (Vaswani et al. 2017, section 3.2.3).

    >>> import numpy as np, mha_core as mha
    >>> x = np.ones((2, 4))
    >>> mha.attention_weights(x, x, mask=mha.causal())
    array([[1. , 0. ],
           [0.5, 0.5]])
    """
    return _CAUSAL


_CAUSAL = Band(None, 0)


def window(left: int | None, right: int | None) -> Mask:
    """query - left <= key <= query + right, both limits inclusive; None: no limit on that side.

    ``window(255, 0)`` is causal attention over the last 256 positions (Beltagy et al. 2020, section 3.1).
    Raises ValueError for a negative size.
    """
    low = None if left is None else -_size("window(left)", left, 0)
    return Band(low, None if right is None else _size("window(right)", right, 0))


def chunks(size: int) -> Mask:
    """Query and key positions in the same chunk of ``size`` positions, chunk 0 starting at position 0."""
    return Chunks(_size("chunks(size)", size, 1))


def prefix(n: int) -> Mask:
    """Key index < n. ``prefix(n) | causal()`` is the prefix language model of Raffel et al. 2020, section 3.2.1."""
    return KeyLengths(_size("prefix(n)", n, 0))


def key_lengths(n: int | Array) -> Mask:
    """Key index < n, for padded batches; ``n`` is an int, or integers of the batch shape."""
    if is_array(n) and not isinstance(n, Integral):
        return KeyLengths(n)
    return KeyLengths(_size("key_lengths(n)", n, 0, ", or an array of integers"))


def segments(query_ids: Array, key_ids: Array) -> Mask:
    """A query attends to the keys with the same id; ids are integers ``(..., L)`` and ``(..., S)``."""
    return Segments(query_ids, key_ids)


def packed(lengths: Iterable[int]) -> Mask:
    """Sequences laid end to end without padding; ``lengths`` are host integers that add up to L and to S."""
    return Packed(tuple(_size("packed(lengths)", n, 0) for n in lengths))


def array_mask(m: Array) -> Mask:
    """The mask of a boolean array that broadcasts to ``(..., H, L, S)``, True where a query may attend."""
    return as_mask(m)
