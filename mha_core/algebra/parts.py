"""Parts of a problem: some of its queries against some of its keys, in some heads, with masks and biases in their indices.

Attention of a part is a state, and the states of parts with the same queries merge to that of the whole problem. So a part may
be computed anywhere, by any kernel, from its arrays, its mask and its bias.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from .arrays import AnyIndex, Array, DynamicRange, Namespace, pick, pick_pairs
from .grid import Grid, Relation, Term

if TYPE_CHECKING:
    from .biases import Bias
    from .dropout import WeightDropout
    from .expressions import Mask

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
        """True if queries and keys follow each other, so that distances are those of the problem."""
        return self.step == 1

    @property
    def step(self) -> int | None:
        """The distance of queries and of keys from the next ones; None if that differs."""
        step = step_of(self.rows)
        return step if step == step_of(self.cols) else None

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
        return known_relation(mask, Grid(xp, None, self.rows, self.cols, self.offset))

    def mask(self, xp: Namespace, mask: Mask | None) -> Mask | None:
        """Return the mask of the part; None if all pairs attend."""
        return None if mask is None or self.relation(xp, mask) is Relation.ALL else mask.part(xp, self)

    def bias(self, xp: Namespace, bias: Bias | None) -> Bias | None:
        """Return the bias of the part."""
        return None if bias is None else bias.part(xp, self)

    def dropout(self, xp: Namespace, dropout: WeightDropout | None) -> WeightDropout | None:
        """Return the dropout of the part."""
        return None if dropout is None else dropout.part(xp, self)

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
        leading = (*grid.leading[:-1], self.num_heads or grid.leading[-1])
        return Grid(grid.xp, grid.device, rows, cols, self.offset, grid.dtype, leading)


def known_relation(mask: Mask, grid: Grid) -> Relation:
    """Return whether NONE, SOME or ALL pairs of a block attend; SOME if its place is not known yet."""
    known = isinstance(grid.rows, range | tuple) and isinstance(grid.cols, range | tuple)
    return mask.relation(grid) if known else Relation.SOME


def step_of(index: Positions) -> int:
    """Return how far successive indices are from each other."""
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


class PartOf(Term):
    """A term of the whole problem, evaluated in the indices of a part; it has been checked against the whole."""

    inner: Any
    place: Any

    def block(self, grid: Grid) -> Array:
        return self.place.over_heads(grid.xp, self.inner.block(self.place.whole(grid)), -3)

    def walk(self) -> Iterator[Term]:
        yield self

    @property
    def reads_heads(self) -> bool:  # type: ignore[override]
        return bool(self.inner.reads_any_heads)

    @property
    def may_differ_in_batch(self) -> bool:
        return self.inner.may_differ_in_batch or not isinstance(self.place.offset, int)
