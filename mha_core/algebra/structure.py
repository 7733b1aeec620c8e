"""The structure of a mask: the form in which kernels read it.

The masks of a conjunction are grouped by kind. Keys that no query can reach are dropped before anything is computed;
the structure uses the indices of the keys that remain.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, reduce
from operator import and_

from .arrays import Array, Namespace, as_integers, pick_pairs
from .expressions import ArrayMask, Mask
from .grid import FARTHEST, Grid, Relation
from .masks import Band, KeyLengths, Packed
from .tiles import NO_LIMITS, Limits

EVERY_KEY = range(FARTHEST)
"""The keys that remain if a library does not know how many there are, as while it traces a graph: all."""


@dataclass(frozen=True, eq=False)
class Structure:
    """A mask as the conjunction of its fields; a field without effect is None.

    Query i and key j are indices of the arrays that the kernel receives: key j is the caller's ``keys.start + j``.
    """

    keys: range
    """The caller's keys that remain; no query may see any other. ``EVERY_KEY`` if the number of queries or keys is not known:
    then no key is dropped or zeroed, and the whole mask is ``rest``."""
    band: Limits = NO_LIMITS
    """``low <= j - i <= high``, with the query offset included."""
    key_lengths: Array | None = None
    """Query i sees key j if ``j < key_lengths``; integers of the batch shape."""
    packed: tuple[int, ...] | None = None
    """Lengths of sequences laid end to end, the same for queries and keys."""
    array: Array | None = None
    """Booleans that broadcast to (..., H, L, S)."""
    rest: Mask | None = None
    """All other masks, in the caller's indices."""

    def keeps_all(self, num_keys: int) -> bool:
        """Return whether all of ``num_keys`` keys remain."""
        return self.keys is EVERY_KEY or len(self.keys) == num_keys

    @property
    def lengths_alone_hide(self) -> bool:
        """True if some query sees each key that remains and is within the key lengths.

        Keys out of reach of the band were dropped, and its diagonal sees every key of every packed sequence.
        """
        low, high = self.band
        diagonal = (low is None or low <= 0) and (high is None or high >= 0)
        return self.rest is None and self.array is None and (self.packed is None or diagonal)

    @property
    def sees_every_key(self) -> bool:
        """True if some query is known to see each key that remains."""
        return self.lengths_alone_hide and self.key_lengths is None

    def keys_of(self, rows: range) -> range:
        """Return the caller's keys that the band lets at least one of ``rows`` see."""
        cols = self.band.keys_of(rows, range(len(self.keys)))
        return self.keys[cols.start : cols.stop]

    @cached_property
    def features(self) -> frozenset[str]:
        """Names of the features that a kernel must declare to be given this mask."""
        low, high = self.band
        present = {
            "causal": low is None and high is not None,
            "window": low is not None,
            "key_lengths": self.key_lengths is not None,
            "packed": self.packed is not None,
            "array_mask": self.array is not None,
            "mask": self.rest is not None,
            "mask_function": self.rest is not None and self.rest.reads_any_heads,
        }
        return frozenset(name for name, is_present in present.items() if is_present)


def structure_of(
    xp: Namespace, mask: Mask | None, *, num_queries: int | None, num_keys: int | None, offset: int | Array
) -> Structure:
    """Return the structure of ``mask`` over ``num_queries`` x ``num_keys`` pairs; None stands for a number not known."""
    if num_queries is None or num_keys is None:
        return Structure(EVERY_KEY, rest=mask)
    low: int | None = None
    high: int | None = None
    stop = num_keys
    lengths: Array | None = None
    packed: tuple[int, ...] | None = None
    array: Array | None = None
    rest: list[Mask] = []
    for conjunct in () if mask is None else mask.conjuncts():
        match conjunct:
            case Band(its_low, its_high) if isinstance(offset, int):
                low, high = _tightest(max, low, its_low), _tightest(min, high, its_high)
            case KeyLengths(int(n)):
                stop = min(stop, n)
            case KeyLengths(n) if lengths is None:
                lengths = n  # type: ignore[assignment]
            case Packed(n) if packed is None:
                packed = n
            case ArrayMask(m) if array is None:
                array = m
            case _:
                rest.append(conjunct)

    if num_queries and num_keys:
        everything = Grid(xp, None, range(num_queries), range(num_keys), offset)
        relations = [(conjunct, conjunct.relation(everything)) for conjunct in rest]
        rest = [conjunct for conjunct, relation in relations if relation is not Relation.ALL]
        stop = 0 if any(relation is Relation.NONE for _, relation in relations) else stop

    band = Limits(low, high).shifted(offset if isinstance(offset, int) else 0)
    keys = band.keys_of(range(num_queries), range(stop))
    if not keys or (low is not None and high is not None and low > high):
        return Structure(range(0))

    if packed is not None and (len(packed) - packed.count(0) < 2 or keys != range(num_keys)):
        rest += [Packed(packed)] if len(packed) - packed.count(0) > 1 else []
        packed = None
    seen = (num_queries, len(keys)) if packed is None else (max(packed), max(packed))  # nobody sees beyond their sequence
    return Structure(
        keys=keys,
        band=_limiting(band.shifted(-keys.start), *seen),
        key_lengths=None if lengths is None else as_integers(xp, lengths) - keys.start,
        packed=packed,
        array=None if array is None else pick_pairs(xp, array, range(num_queries), keys),
        rest=reduce(and_, rest) if rest else None,
    )


def _tightest(choose: Callable[[int, int], int], a: int | None, b: int | None) -> int | None:
    return b if a is None else a if b is None else choose(a, b)


def _limiting(band: Limits, num_queries: int, num_keys: int) -> Limits:
    """Return the band without limits that exclude no pair."""
    low, high = band
    low = None if low is None or low <= 1 - num_queries else low
    high = None if high is None or high >= num_keys - 1 else high
    return Limits(low, high)
