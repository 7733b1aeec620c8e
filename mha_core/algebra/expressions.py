"""Masks as expressions: the class of all masks, boolean arrays, and ``&``, ``|`` and ``~`` of masks.

True means "attend" (promise 4). A mask can tell for a whole block of queries and keys, without looking at single
pairs, whether NONE, SOME or ALL of the pairs attend. This logic has three values: ``&`` is min, ``|`` is max,
``~`` is ``2 - x`` (Kleene 1952). It allows blocks of any expression to be skipped, or computed without masking.
A mask that contains arrays returns SOME, because reading them could mean waiting for a device.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from .arrays import Array, Namespace, is_array, pick_pairs
from .grid import Grid, Relation, Term, check_broadcast, not_a_term
from .parts import Part, PartOf, known_relation


class Mask(Term):
    """A predicate over (query, key) pairs. Combine masks with ``& | ~``.

    A class of your own defines ``block``, and works everywhere. The other methods tell what makes attention faster.
    """

    __array_ufunc__ = None  # so that `numpy_array & mask` calls __rand__
    is_stored = False
    """True if a block is a view of an array, which takes no memory."""

    def relation(self, grid: Grid) -> Relation:
        """Return whether NONE, SOME or ALL pairs of a non-empty block attend; SOME if that is not known."""
        return Relation.SOME

    def part(self, xp: Namespace, part: Part) -> Mask:
        """Return the mask of a part of the problem, in the part's indices."""
        return PartOfMask(self, part)

    def conjuncts(self) -> Iterator[Mask]:
        """Yield masks whose conjunction this mask is; kernels have arguments for some kinds."""
        yield self

    def conjuncts_of_not(self) -> Iterator[Mask]:
        """Yield masks whose conjunction is the complement of this mask."""
        yield Not(self)

    def __and__(self, other: Mask | Array) -> Mask:
        return And(self, as_mask(other))

    def __or__(self, other: Mask | Array) -> Mask:
        return Or(self, as_mask(other))

    __rand__ = __and__
    __ror__ = __or__

    def __invert__(self) -> Mask:
        return Not(self)

    def __bool__(self) -> bool:
        raise TypeError("a mask is neither true nor false: combine masks with & | ~, not with and, or, not")


@dataclass(frozen=True, eq=False)
class PartOfMask(PartOf, Mask):
    inner: Mask
    place: Part

    def relation(self, grid: Grid) -> Relation:
        return known_relation(self.inner, self.place.whole(grid))


@dataclass(frozen=True, eq=False)
class And(Mask):
    left: Mask
    right: Mask

    def block(self, grid: Grid) -> Array:
        return self.left.block(grid) & self.right.block(grid)

    def relation(self, grid: Grid) -> Relation:
        return min(self.left.relation(grid), self.right.relation(grid))

    def part(self, xp: Namespace, part: Part) -> Mask:
        return And(self.left.part(xp, part), self.right.part(xp, part))

    def conjuncts(self) -> Iterator[Mask]:
        yield from self.left.conjuncts()
        yield from self.right.conjuncts()


@dataclass(frozen=True, eq=False)
class Or(Mask):
    left: Mask
    right: Mask

    def block(self, grid: Grid) -> Array:
        return self.left.block(grid) | self.right.block(grid)

    def relation(self, grid: Grid) -> Relation:
        return max(self.left.relation(grid), self.right.relation(grid))

    def part(self, xp: Namespace, part: Part) -> Mask:
        return Or(self.left.part(xp, part), self.right.part(xp, part))

    def conjuncts_of_not(self) -> Iterator[Mask]:
        """Yield those of ``~a & ~b`` (De Morgan)."""
        yield from self.left.conjuncts_of_not()
        yield from self.right.conjuncts_of_not()


@dataclass(frozen=True, eq=False)
class Not(Mask):
    mask: Mask

    def block(self, grid: Grid) -> Array:
        return ~self.mask.block(grid)

    def relation(self, grid: Grid) -> Relation:
        return Relation(2 - self.mask.relation(grid))

    def part(self, xp: Namespace, part: Part) -> Mask:
        return Not(self.mask.part(xp, part))

    def conjuncts(self) -> Iterator[Mask]:
        return self.mask.conjuncts_of_not()

    def conjuncts_of_not(self) -> Iterator[Mask]:
        return self.mask.conjuncts()


@dataclass(frozen=True, eq=False)
class ArrayMask(Mask):
    """A boolean array that broadcasts to ``(..., H, L, S)``."""

    array: Array
    label = "mask"
    is_stored = True

    def block(self, grid: Grid) -> Array:
        return pick_pairs(grid.xp, self.array, grid.rows, grid.cols)

    def part(self, xp: Namespace, part: Part) -> Mask:
        return replace(self, array=part.pairs(xp, self.array))

    def check(self, xp: Namespace, shape: tuple[int, ...]) -> None:
        if self.array.dtype != xp.bool:
            raise TypeError(
                f"mask has dtype {self.array.dtype}; expected a boolean array, True where a query may attend: "
                "write mask != 0 for a mask of ones and zeros, or pass numbers to be added to the scores as bias="
            )
        check_broadcast("mask", self.array.shape, shape, "(..., H, L, S)")


def as_mask(mask: Mask | Array) -> Mask:
    """Return a mask unchanged, and a boolean array as an ArrayMask; raise TypeError for anything else."""
    if isinstance(mask, Mask):
        return mask
    if is_array(mask):
        return ArrayMask(mask)
    raise not_a_term("mask", mask, "a mask such as causal(), or a boolean array")
