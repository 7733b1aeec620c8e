"""Parts of a problem: some of its queries against some of its keys, with masks and biases in the indices of the part.

Attention of a part is a state, and the states of parts with the same queries merge to that of the whole problem. So a part may
be computed anywhere, by any kernel, from its arrays, its mask and its bias.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .arrays import AnyIndex, Array, DynamicRange, Namespace
from .biases import ArrayBias, Bias
from .dropout import WeightDropout
from .grid import Grid
from .masks import And, ArrayMask, Band, Chunks, KeyLengths, Mask, Not, Or, Relation, Segments


@dataclass(frozen=True, eq=False)
class Part:
    """Queries ``rows`` and keys ``cols`` of a problem: ascending ranges of its indices; ``offset`` is its query_offset."""

    rows: range
    cols: range
    offset: int | Array = 0

    @property
    def is_dense(self) -> bool:
        """Whether queries and keys follow each other, so that distances are those of the problem."""
        return self.rows.step == self.cols.step == 1

    @property
    def query_offset(self) -> int | Array:
        """The query_offset of the part."""
        return self.offset + (self.rows.start - self.cols.start) if self.is_dense else 0

    def relation(self, xp: Namespace, mask: Mask | None) -> Relation:
        """Return whether NONE, SOME or ALL pairs of the part attend."""
        if not len(self.rows) or not len(self.cols):
            return Relation.NONE
        return Relation.ALL if mask is None else mask.relation(Grid(xp, None, self.rows, self.cols, self.offset))

    def mask(self, xp: Namespace, mask: Mask | None) -> Mask | None:
        """Return the mask of the part; None if all pairs attend."""
        return None if mask is None or self.relation(xp, mask) is Relation.ALL else self._mask(mask)

    def _mask(self, mask: Mask) -> Mask:
        match mask:
            case And(left, right):
                return And(self._mask(left), self._mask(right))
            case Or(left, right):
                return Or(self._mask(left), self._mask(right))
            case Not(inner):
                return Not(self._mask(inner))
            case Band(low, high) if self.is_dense or (self.rows.step == self.cols.step and isinstance(self.offset, int)):
                return mask if self.is_dense else self._band(low, high)
            case Chunks(size) if self.is_dense and self.cols.start % size == 0:
                return mask
            case KeyLengths(int(n)):
                return KeyLengths(len(range(self.cols.start, min(n, self.cols.stop), self.cols.step)))
            case KeyLengths(n):
                return KeyLengths((n - self.cols.start + (self.cols.step - 1)) // self.cols.step)
            case Segments(queries, keys):
                return Segments(queries[..., _slice(self.rows)], keys[..., _slice(self.cols)])
            case ArrayMask(array):
                return ArrayMask(self.pairs(array))
            case _:
                return _PartOfMask(mask, self)

    def _band(self, low: int | None, high: int | None) -> Band:
        """Return a band in steps: low <= cols.start - rows.start - offset + step (key - query) <= high."""
        assert isinstance(self.offset, int)
        step, shift = self.rows.step, self.cols.start - self.rows.start - self.offset
        return Band(None if low is None else -((shift - low) // step), None if high is None else (high - shift) // step)

    def bias(self, bias: Bias | None) -> Bias | None:
        """Return the bias of the part."""
        if bias is None or (bias.by_distance and self.is_dense):
            return bias
        return ArrayBias(self.pairs(bias.array)) if type(bias) is ArrayBias else _PartOfBias(bias, self)

    def dropout(self, dropout: WeightDropout | None) -> WeightDropout | None:
        """Return the dropout of the part."""
        if dropout is None or dropout.array is None:
            return None if dropout is None else _PartOfDropout(dropout.rate, dropout.seed, None, self)
        return WeightDropout(dropout.rate, None, self.pairs(dropout.array))

    def pairs(self, x: Array) -> Array:
        """Return the elements of an array, which broadcasts to (..., L, S), that belong to the part: a view."""
        if x.ndim and x.shape[-1] != 1:
            x = x[..., _slice(self.cols)]
        return x[..., _slice(self.rows), :] if x.ndim > 1 and x.shape[-2] != 1 else x

    def whole(self, grid: Grid) -> Grid:
        """Return a block of the part as a block of the problem."""
        rows, cols = _composed(self.rows, grid.rows), _composed(self.cols, grid.cols)
        return Grid(grid.xp, grid.device, rows, cols, self.offset, grid.dtype)


def _slice(index: range) -> slice:
    return slice(index.start, index.stop, index.step)


def _composed(outer: range, inner: AnyIndex) -> AnyIndex:
    if isinstance(inner, range):
        return outer[_slice(inner)] if inner.step > 0 else tuple(outer[i] for i in inner)
    if isinstance(inner, DynamicRange):
        if outer.step != 1:
            raise TypeError("a compiled loop cannot step through indices that are not adjacent")
        return inner.shifted(outer.start)
    return tuple(outer[i] for i in inner)


@dataclass(frozen=True, eq=False)
class _PartOfMask(Mask):
    inner: Mask
    part: Part

    def block(self, grid: Grid) -> Array:
        return self.inner.block(self.part.whole(grid))

    def relation(self, grid: Grid) -> Relation:
        return self.inner.relation(self.part.whole(grid))


@dataclass(frozen=True, eq=False)
class _PartOfBias(Bias):
    inner: Bias
    part: Part

    def block(self, grid: Grid) -> Array:
        return self.inner.block(self.part.whole(grid))


@dataclass(frozen=True, eq=False)
class _PartOfDropout(WeightDropout):
    part: Part | None = None

    def kept(self, grid: Grid, rows_shape: tuple[int, ...]) -> Any:
        assert self.part is not None
        return WeightDropout(self.rate, self.seed).kept(self.part.whole(grid), rows_shape)
