"""A subproblem of attention, and the tiles in which it is computed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any, Self

import numpy as np

from mha_core import Int8Rows
from mha_core.plugin import BLOCK, Limits, Tile, pieces

from ..scratch import for_blas, readable_by_blas, scratch
from .exponential import Base
from .masks_and_biases import Heads, Matrix, PairValues, Toeplitz
from .score_functions import FunctionOfTile
from .tile_masks import TileMask

_SLAB = 1024  # keys whose norms are computed at a time


@dataclass(slots=True, eq=False)
class Subproblem:
    """Attention of B batch elements, K key heads, G query heads for each of them, L queries and S keys."""

    query: np.ndarray
    """(B, K, G, L, D); all arrays are views of the caller's."""
    key: Any
    """(B, K, S, D), an array or ``Int8Rows``."""
    value: Any
    """(B, K, S, E), likewise."""
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
    band: Limits
    """The band, in the indices of the arrays."""
    softcap: float | None = None
    sink: np.ndarray | None = None
    """(K, G)."""
    mask: Matrix | None = None
    """True where a pair attends."""
    bias: PairValues | None = None
    tile_mask: TileMask | None = None
    """A mask that no view can express; the band is then part of it."""
    function: FunctionOfTile | None = None
    """What takes the place of scores."""
    sequences: tuple[int, ...] = ()
    """Lengths of packed sequences that ``mask`` separates. NaN still spreads among them, as 0 times NaN is NaN."""
    _longest: dict[tuple[int, int], float] = field(default_factory=dict)
    _band_views: tuple[Toeplitz, Toeplitz] | None = None

    @property
    def num_keys(self) -> int:
        return self.key.shape[2]

    @property
    def adds(self) -> bool:
        """True if scores are changed after the softcap, so that no bound on them is known."""
        return self.bias is not None or self.function is not None

    @property
    def copies(self) -> bool:
        """True if keys and values must be copied, tile by tile."""
        return not (readable_by_blas(self.key, self.dtype) and readable_by_blas(self.value, self.dtype))

    def longest_key(self, heads: Heads) -> float:
        """Return the greatest norm of a key of some heads, which is computed once."""
        first = heads[0].start, heads[1].start
        if first not in self._longest:
            self._longest[first] = longest_norm(self.key[heads], self.dtype)
        return self._longest[first]

    def part(self, elements: slice, rows: slice, keys: slice, **changes: Any) -> Self:
        """Return the subproblem of these batch elements, queries and keys, with ``changes`` of other fields."""
        return replace(
            self,
            query=self.query[elements, :, :, rows],
            key=self.key[elements, :, keys],
            value=self.value[elements, :, keys],
            out=self.out[elements, :, :, rows],
            lse=None if self.lse is None else self.lse[elements, :, :, rows],
            _longest={},
            **changes,
        )

    def element(self, b: int, num_keys: int) -> Self:
        """Return one batch element with its first ``num_keys`` keys."""
        mask = None if self.mask is None else self.mask.element(b)
        bias = None if self.bias is None else self.bias.element(b)
        function = None if self.function is None else self.function.element(b)
        return self.part(slice(b, b + 1), slice(None), slice(num_keys), mask=mask, bias=bias, function=function)

    def each_sequence(self, rows: range) -> Iterator[tuple[Self, range]]:
        """Yield a subproblem for each sequence with queries among ``rows``, and the range of these queries in the sequence."""
        for stop, length in zip(accumulate(self.sequences), self.sequences, strict=True):
            start, tokens = stop - length, slice(stop - length, stop)
            own_rows = range(max(rows.start, start) - start, min(rows.stop, stop) - start)
            if own_rows:
                yield self.part(slice(None), tokens, tokens, mask=None, sequences=(), _band_views=None), own_rows

    def tiles(self, rows: range, size: int, edge: int) -> list[Tile]:
        """Return the tiles of these queries: at most ``size`` keys each, ``edge`` where the band cuts across."""
        whole: Any = self.band if self.tile_mask is None else self.tile_mask
        return list(whole.tiles(rows, range(self.num_keys), size, edge))

    def tiles_of_keys(self, cols: range, size: int) -> list[Tile]:
        """Return the tiles of all queries that may see some of these keys, at most ``size`` queries each."""
        cut, rows = self.band != (None, None), self.band.rows_of(cols, range(self.query.shape[3]))
        tiles = [Tile(cols, some, cut) for some in pieces(rows, size, even=True)]
        if self.tile_mask is None:
            return tiles
        every = len(cols) + 2 * BLOCK  # tiles are as wide, wherever those of a map begin
        return [masked for tile in tiles for masked in self.tile_mask.tiles(tile.rows, cols, len(cols), every)]

    def cut_rows(self, tile: Tile) -> list[range]:
        """Return the queries of a tile for which the band hides some of its keys."""
        rows, every = tile.rows, self.band.rows_of(tile.cols, tile.rows, every=True)
        return [x for x in (range(rows.start, every.start), range(every.stop, rows.stop)) if x] if every else [rows]

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
        for rows, mask in self._masks(heads, tile):
            cut = pairs[..., rows.start - tile.rows.start : rows.stop - tile.rows.start, :]
            if fill == 0:  # a branch for each pair would take longer than a product
                numbers = scratch("seen", mask.shape, self.dtype)
                np.copyto(numbers, mask)
                cut *= numbers
            else:
                np.copyto(cut, fill, where=np.logical_not(mask, out=scratch("hidden", mask.shape, np.dtype(bool))))

    def _masks(self, heads: Heads, tile: Tile) -> Iterator[tuple[range, np.ndarray]]:
        """Yield masks of a tile besides the band: some queries, and booleans (batch, key heads, cols, these queries, group)."""
        if self.mask is not None:
            yield tile.rows, self.mask.view(heads, tile.rows, tile.cols)
        for rows, mask in tile.mask or ():
            yield rows, mask[heads].transpose(0, 1, 4, 3, 2)


def longest_norm(x: np.ndarray | Int8Rows, dtype: Any) -> float:
    """Return the greatest norm of a vector in x, (batch, heads, n, D)."""
    slabs: Iterable[Any] = [x] if x.shape[2] <= _SLAB else [x[:, :, at : at + _SLAB] for at in range(0, x.shape[2], _SLAB)]
    if isinstance(x, Int8Rows):
        slabs = (for_blas(slab, dtype, "slab") for slab in slabs)
    squares = [np.maximum.reduce(np.vecdot(slab, slab, dtype=dtype), axis=None) for slab in slabs]
    return math.sqrt(squares[0] if len(squares) == 1 else np.max(squares))
