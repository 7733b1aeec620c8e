"""A subproblem of attention, and the tiles in which it is computed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any, NamedTuple, Self

import numpy as np

from ..scratch import readable_by_blas, scratch
from .exponential import Base
from .masks_and_biases import Heads, Matrix, PairValues, Toeplitz


class Tile(NamedTuple):
    """Some keys (cols), and the queries (rows) that may see them."""

    cols: range
    rows: range
    cut: bool = False
    """Whether the band hides some of these pairs."""
    mask: np.ndarray | None = None
    """Which pairs attend, by ``Subproblem.evaluate_mask``: (batch, key heads, group, rows, cols)."""


@dataclass(slots=True, eq=False)
class Subproblem:
    """Attention of B batch elements, K key heads, G query heads for each of them, L queries and S keys."""

    query: np.ndarray
    """(B, K, G, L, D); all arrays are views of the caller's."""
    key: np.ndarray
    """(B, K, S, D)."""
    value: np.ndarray
    """(B, K, S, E)."""
    out: np.ndarray
    """(B, K, G, L, E), written to."""
    lse: np.ndarray | None
    """(B, K, G, L), written to; None if it is not wanted."""
    dtype: Any
    """Dtype of the computation."""
    base: Base
    """Base of the exponentials."""
    scale: float
    """Factor of a score: the caller's scale divided by the softcap, or by ln b if there is no softcap."""
    softcap: float | None = None
    sink: np.ndarray | None = None
    """(K, G)."""
    band: tuple[int | None, int | None] = (None, None)
    """low <= key - query <= high; None: no limit."""
    mask: Matrix | None = None
    """True where a pair attends."""
    bias: PairValues | None = None
    evaluate_mask: Callable[[range, range], Any] | None = None
    """For a mask that no view can express: (rows, cols) -> which pairs attend; None for all of them, False for none."""
    sequences: tuple[int, ...] = ()
    """Lengths of packed sequences that ``mask`` separates. NaN still spreads among them, as 0 times NaN is NaN."""
    longest: dict[tuple[int, int], float] = field(default_factory=dict)
    """The greatest norm of a key by first batch element and first head, filled when it is first needed."""
    _band_views: tuple[Toeplitz, Toeplitz] | None = None

    @property
    def num_keys(self) -> int:
        return self.key.shape[2]

    @property
    def copies(self) -> bool:
        """Whether keys and values must be copied, tile by tile."""
        return not (readable_by_blas(self.key, self.dtype) and readable_by_blas(self.value, self.dtype))

    def element(self, b: int, num_keys: int) -> Self:
        """Return one batch element with its first ``num_keys`` keys."""
        one = slice(b, b + 1)
        return replace(
            self,
            query=self.query[one],
            key=self.key[one, :, :num_keys],
            value=self.value[one, :, :num_keys],
            out=self.out[one],
            lse=None if self.lse is None else self.lse[one],
            mask=None if self.mask is None else self.mask.element(b),
            bias=None if self.bias is None else self.bias.element(b),
            longest={},
        )

    def each_sequence(self, rows: range) -> Iterator[tuple[Self, range]]:
        """Yield a subproblem for each sequence with queries among ``rows``, and the range of these queries in the sequence."""
        for stop, length in zip(accumulate(self.sequences), self.sequences, strict=True):
            start, tokens = stop - length, slice(stop - length, stop)
            own_rows = range(max(rows.start, start) - start, min(rows.stop, stop) - start)
            if not own_rows:
                continue
            alone = replace(
                self,
                query=self.query[:, :, :, tokens],
                key=self.key[:, :, tokens],
                value=self.value[:, :, tokens],
                out=self.out[:, :, :, tokens],
                lse=None if self.lse is None else self.lse[:, :, :, tokens],
                mask=None,
                sequences=(),
                longest={},
                _band_views=None,
            )
            yield alone, own_rows

    def reach(self, rows: range) -> range:
        """Return the keys that the band lets at least one of these queries see."""
        low, high = self.band
        start = 0 if low is None else max(0, rows.start + low)
        return range(start, self.num_keys if high is None else max(start, min(self.num_keys, rows.stop + high)))

    def queries_of(self, cols: range) -> range:
        """Return the queries that the band lets see at least one of these keys."""
        (low, high), length = self.band, self.query.shape[3]
        start = 0 if high is None else max(0, cols.start - high)
        return range(start, length if low is None else max(start, min(length, cols.stop - low)))

    def tiles(self, rows: range, size: int, edge: int) -> list[Tile]:
        """Return the tiles of these queries: at most ``size`` keys each, ``edge`` where the band cuts across."""
        found = list(self._tiles(rows, size, edge))
        if self.evaluate_mask is None:
            return found
        masks = [(tile, self.evaluate_mask(rows, tile.cols)) for tile in found]
        return [tile._replace(mask=mask) for tile, mask in masks if mask is not False]

    def _tiles(self, rows: range, size: int, edge: int) -> Iterator[Tile]:
        (low, high), reach = self.band, self.reach(rows)
        start = reach.start if low is None else max(reach.start, rows.stop - 1 + low)
        stop = reach.stop if high is None else min(reach.stop, rows.start + high + 1)
        if start >= stop:  # no key is seen by all of these queries
            yield from self._edge_tiles(rows, reach, edge)
            return
        yield from self._edge_tiles(rows, range(reach.start, start), edge)
        for cols in evenly(range(start, stop), size):
            yield Tile(cols, rows)
        yield from self._edge_tiles(rows, range(stop, reach.stop), edge)

    def _edge_tiles(self, rows: range, cols: range, size: int) -> Iterator[Tile]:
        low, high = self.band
        for some in evenly(cols, size):
            start = rows.start if high is None else max(rows.start, some.start - high)
            stop = rows.stop if low is None else min(rows.stop, some.stop - low)
            if start < stop:
                yield Tile(some, range(start, stop), cut=True)

    def tiles_of_keys(self, cols: range, size: int) -> list[Tile]:
        """Return the tiles of all queries that may see some of these keys, at most ``size`` queries each."""
        cut = self.band != (None, None)
        found = [Tile(cols, rows, cut) for rows in evenly(self.queries_of(cols), size)]
        if self.evaluate_mask is None:
            return found
        masks = [(tile, self.evaluate_mask(tile.rows, cols)) for tile in found]
        return [tile._replace(mask=mask) for tile, mask in masks if mask is not False]

    def cut_rows(self, tile: Tile) -> list[range]:
        """Return the queries of a tile for which the band hides some of its keys."""
        (low, high), cols, rows = self.band, tile.cols, tile.rows
        after = rows.start if high is None else min(rows.stop, max(rows.start, cols.stop - 1 - high))
        before = rows.stop if low is None else max(rows.start, min(rows.stop, cols.start - low + 1))
        return [rows] if after >= before else [x for x in (range(rows.start, after), range(before, rows.stop)) if x]

    def band_views(self) -> tuple[Toeplitz, Toeplitz]:
        """Return two views: booleans, True where the band hides a pair; and numbers, 0 there and 1 elsewhere."""
        if self._band_views is None:
            low, high = self.band
            distance = np.arange(1 - self.num_keys, self.query.shape[3])  # query - key
            hidden = np.zeros(distance.size, dtype=bool)
            if high is not None:
                hidden |= distance < -high
            if low is not None:
                hidden |= distance > -low
            seen = (~hidden).astype(self.dtype)
            self._band_views = (
                Toeplitz(hidden[None, None, None], self.num_keys),
                Toeplitz(seen[None, None, None], self.num_keys),
            )
        return self._band_views

    def pairs(self, s: np.ndarray) -> np.ndarray:
        """(batch, key heads, cols, rows * group) -> (batch, key heads, cols, rows, group), a view."""
        return s.reshape(*s.shape[:3], -1, self.query.shape[2], copy=False)

    def hide(self, s: np.ndarray, heads: Heads, tile: Tile, fill: float) -> None:
        """Write ``fill`` for pairs of a tile that do not attend; s is (batch, key heads, cols, rows * group).

        If ``fill`` is 0, s must be finite: multiplying by 0 and 1 is faster.
        """
        pairs = self.pairs(s)
        if tile.cut:
            hidden, seen = self.band_views()
            for rows in self.cut_rows(tile):
                cut = pairs[..., rows.start - tile.rows.start : rows.stop - tile.rows.start, :]
                if fill == 0:
                    cut *= seen.view(heads, rows, tile.cols)
                else:
                    np.copyto(cut, fill, where=hidden.view(heads, rows, tile.cols))
        for mask in self._masks(heads, tile):
            if fill == 0:  # a branch for each pair would take longer than a product
                numbers = scratch("seen", mask.shape, self.dtype)
                np.copyto(numbers, mask)
                pairs *= numbers
            else:
                np.copyto(pairs, fill, where=np.logical_not(mask, out=scratch("hidden", mask.shape, np.dtype(bool))))

    def _masks(self, heads: Heads, tile: Tile) -> Iterator[np.ndarray]:
        """Yield the masks of a tile besides the band: booleans that broadcast to (batch, key heads, cols, rows, group)."""
        if self.mask is not None:
            yield self.mask.view(heads, tile.rows, tile.cols)
        if tile.mask is not None:
            yield tile.mask[heads].transpose(0, 1, 4, 3, 2)


def evenly(index: range, size: int) -> Iterable[range]:
    """Cut a range into as few ranges of at most ``size`` as possible, all of about the same length."""
    if len(index) <= size:
        return (index,) if index else ()
    each = -(-len(index) // -(-len(index) // size))
    return (index[at : at + each] for at in range(0, len(index), each))
