"""Parts of a problem: some of its queries against some of its keys, in some heads, with masks and biases in their indices.

Attention of a part is a state, and the states of parts with the same queries merge to that of the whole problem. So a part may
be computed anywhere, by any kernel, from its arrays, its mask and its bias.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from .arrays import AnyIndex, Array, DynamicRange, Namespace, as_integers, pick, pick_pairs
from .biases import ArrayBias, Bias, RelativeBias
from .dropout import WeightDropout
from .grid import Grid, Term
from .masks import And, ArrayMask, Band, Chunks, KeyLengths, Mask, Not, Or, Packed, Relation, Segments

Positions: TypeAlias = range | DynamicRange
"""Ascending indices, or successive ones that are known only when a compiled program runs."""


@dataclass(frozen=True, eq=False)
class Part:
    """Queries ``rows`` and keys ``cols`` of a problem, in ``heads`` of its ``num_heads``, all by default.

    ``offset`` is the query_offset of the problem.
    """

    rows: Positions
    cols: Positions
    offset: int | Array = 0
    heads: Positions | None = None
    num_heads: int = 0

    @property
    def is_dense(self) -> bool:
        """Whether queries and keys follow each other, so that distances are those of the problem."""
        return _step(self.rows) == _step(self.cols) == 1

    @property
    def query_offset(self) -> int | Array:
        """The query_offset of the part."""
        return self.offset + (self.rows.start - self.cols.start) if self.is_dense else 0

    def relation(self, xp: Namespace, mask: Mask | None) -> Relation:
        """Return whether NONE, SOME or ALL pairs of the part attend."""
        if not len(self.rows) or not len(self.cols):
            return Relation.NONE
        if mask is None:
            return Relation.ALL
        return _relation(mask, Grid(xp, None, self.rows, self.cols, self.offset))

    def mask(self, xp: Namespace, mask: Mask | None) -> Mask | None:
        """Return the mask of the part; None if all pairs attend."""
        return None if mask is None or self.relation(xp, mask) is Relation.ALL else self._mask(xp, mask)

    def _mask(self, xp: Namespace, mask: Mask) -> Mask:
        match mask:
            case And(left, right):
                return And(self._mask(xp, left), self._mask(xp, right))
            case Or(left, right):
                return Or(self._mask(xp, left), self._mask(xp, right))
            case Not(inner):
                return Not(self._mask(xp, inner))
            case Band() if self.is_dense:
                return mask
            case Band(low, high) if _step(self.rows) == _step(self.cols) and isinstance(self.offset, int):
                return self._band(low, high)
            case Chunks(size) if self.is_dense and isinstance(self.cols, range) and self.cols.start % size == 0:
                return mask
            case Packed(lengths) if self.rows == self.cols == range(sum(lengths)):
                return mask
            case KeyLengths(int(n)) if isinstance(self.cols, range):
                return KeyLengths(len(range(self.cols.start, min(n, self.cols.stop), self.cols.step)))
            case KeyLengths(n):
                step, count = _step(self.cols), n if isinstance(n, int) else as_integers(xp, n)
                return KeyLengths((count - self.cols.start + (step - 1)) // step)
            case Segments(queries, keys):
                return Segments(pick(xp, queries, self.rows, -1), pick(xp, keys, self.cols, -1))
            case ArrayMask(array):
                return ArrayMask(self.pairs(xp, array))
            case _:
                return _PartOfMask(mask, self)

    def _band(self, low: int | None, high: int | None) -> Band:
        """Return a band in steps: low <= cols.start - rows.start - offset + step (key - query) <= high."""
        assert isinstance(self.rows, range) and isinstance(self.cols, range) and isinstance(self.offset, int)
        step, shift = self.rows.step, self.cols.start - self.rows.start - self.offset
        return Band(None if low is None else -((shift - low) // step), None if high is None else (high - shift) // step)

    def bias(self, xp: Namespace, bias: Bias | None) -> Bias | None:
        """Return the bias of the part."""
        if bias is None or (bias.by_distance and self.is_dense and self.heads is None):
            return bias
        if type(bias) is ArrayBias:
            return ArrayBias(self.pairs(xp, bias.array))
        if type(bias) is RelativeBias and self.is_dense:
            return replace(bias, table=self.over_heads(xp, bias.table, -1))
        return _PartOfBias(bias, self)

    def dropout(self, xp: Namespace, dropout: WeightDropout | None) -> WeightDropout | None:
        """Return the dropout of the part."""
        if dropout is None or dropout.array is None:
            return None if dropout is None else _PartOfDropout(dropout.rate, dropout.seed, None, self)
        return WeightDropout(dropout.rate, None, self.pairs(xp, dropout.array))

    def pairs(self, xp: Namespace, x: Array) -> Array:
        """Return the elements of an array, which broadcasts to (..., H, L, S), that belong to the part."""
        x = pick_pairs(xp, x, self.rows, self.cols) if x.ndim else x
        return self.over_heads(xp, x, -3)

    def over_heads(self, xp: Namespace, x: Array, axis: int) -> Array:
        """Return the heads of the part along an axis, unless the array is the same for all heads."""
        return x if self.heads is None or x.ndim < -axis or x.shape[axis] == 1 else pick(xp, x, self.heads, axis)

    def whole(self, grid: Grid) -> Grid:
        """Return a block of the part as a block of the problem, with all heads."""
        rows, cols = _composed(self.rows, grid.rows), _composed(self.cols, grid.cols)
        return Grid(grid.xp, grid.device, rows, cols, self.offset, grid.dtype)


def _relation(mask: Mask, grid: Grid) -> Relation:
    """Return whether NONE, SOME or ALL pairs of a block attend; SOME if its place is not known yet."""
    known = isinstance(grid.rows, range | tuple) and isinstance(grid.cols, range | tuple)
    return mask.relation(grid) if known else Relation.SOME


def _step(index: Positions) -> int:
    return 1 if isinstance(index, DynamicRange) else index.step


def _composed(outer: Positions, inner: AnyIndex) -> AnyIndex:
    """Return outer[inner]."""
    if isinstance(outer, DynamicRange):
        if not isinstance(inner, range) or inner.step != 1:
            raise TypeError("a compiled program can only take successive indices of a part whose place it computes")
        return DynamicRange(outer.start + inner.start, len(inner), outer.slice)
    if isinstance(inner, range):
        return outer[inner.start : inner.stop : inner.step] if inner.step > 0 else tuple(outer[i] for i in inner)
    if isinstance(inner, DynamicRange):
        if outer.step != 1:
            raise TypeError("a compiled loop cannot step through indices that are not adjacent")
        return inner.shifted(outer.start)
    return tuple(outer[i] for i in inner)


class _PartOf(Term):
    """A term of the whole problem, evaluated in the indices of a part; it has been checked against the whole."""

    inner: Any
    part: Any

    def block(self, grid: Grid) -> Array:
        return self.part.over_heads(grid.xp, self.inner.block(self.part.whole(grid)), -3)

    def walk(self) -> Iterator[Term]:
        yield self


@dataclass(frozen=True, eq=False)
class _PartOfMask(_PartOf, Mask):
    inner: Mask
    part: Part

    def relation(self, grid: Grid) -> Relation:
        return _relation(self.inner, self.part.whole(grid))


@dataclass(frozen=True, eq=False)
class _PartOfBias(_PartOf, Bias):
    inner: Bias
    part: Part


@dataclass(frozen=True, eq=False)
class _PartOfDropout(WeightDropout):
    part: Part | None = None

    def kept(self, grid: Grid, rows_shape: tuple[int, ...]) -> Any:
        assert self.part is not None
        whole = rows_shape if self.part.heads is None else (*rows_shape[:-2], self.part.num_heads, rows_shape[-1])
        return self.part.over_heads(grid.xp, WeightDropout(self.rate, self.seed).kept(self.part.whole(grid), whole), -3)
