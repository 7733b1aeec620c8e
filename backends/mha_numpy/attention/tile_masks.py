"""Masks that no view can express, evaluated for the queries and keys of a tile.

The mask of such a tile is a list of pairs: some of its queries, and which of their pairs attend, (batch, K, G, rows, cols).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from mha_core.plugin import BLOCK, AttentionProblem, MappedMask, Relation, Tile, codes_of, pieces, spans


@dataclass(frozen=True)
class TileMask:
    """The mask of a problem for the batch elements at ``at`` of its leading batch axes; ``batch``: all of them."""

    p: AttentionProblem
    batch: tuple[int, ...]
    at: tuple[int, ...]

    @cached_property
    def copies(self) -> int:
        """The number of batch elements and heads that the mask tells apart."""
        assert self.p.mask is not None
        return max(1, math.prod(self.p.mask.block(self._grid(range(1), range(1))).shape[:-2]))

    def tiles(self, rows: range, cols: range, size: int, edge: int = 0) -> Iterator[Tile]:
        """Yield tiles that cover the attending pairs of some queries and keys, with the masks of some of their queries.

        ``size``: keys in a tile, at most. ``edge``: keys that are computed together, about, where some pairs do not attend.
        """
        # without a map, the mask of only so many keys is evaluated at a time
        for part in [cols] if self._codes is not None else pieces(cols, size, even=True):
            yield from self._tiles(rows, part, size, edge)

    def _tiles(self, rows: range, cols: range, size: int, edge: int) -> Iterator[Tile]:
        mask, codes = self.p.mask, self._codes
        assert mask is not None
        relation = mask.relation(self._grid(rows, cols))
        if relation is Relation.ALL:
            yield from (Tile(keys, rows) for keys in pieces(cols, size, even=True))
        if relation is not Relation.SOME:
            return
        pairs = self._pairs(rows, cols) if codes is None else None
        first, first_col = (rows.start, cols.start) if codes is None else (0, 0)
        if pairs is not None:
            of_tiles: Any = codes_of(np, pairs, len(rows), len(cols))
            codes, rows, cols = of_tiles.tolist(), range(len(rows)), range(len(cols))
        assert codes is not None
        for span_rows, span_cols, masked in spans(codes, rows, cols, width=max(1, edge // BLOCK)):
            seen = _shifted(span_rows, first)
            for part in pieces(span_cols, size, even=True):
                keys, masks = _shifted(part, first_col), []
                for masked_rows in masked:
                    at = _shifted(masked_rows, first)
                    masks.append(
                        (at, self._pairs(at, keys) if pairs is None else pairs[..., _slice(masked_rows), _slice(part)])
                    )
                yield Tile(keys, seen, mask=masks)

    @cached_property
    def _codes(self) -> Sequence[Sequence[int]] | None:
        """The ``Relation`` of each tile of ``BLOCK`` queries and keys, if the mask has a map."""
        p = self.p
        return p.mask.codes_at(p.offset) if isinstance(p.mask, MappedMask) and not p.structure.keys.start else None

    def mean_keys(self, rows: range, num_keys: int) -> float:
        """Return how many keys these queries see, about."""
        codes = [] if self._codes is None else self._codes[rows.start // BLOCK : -(-rows.stop // BLOCK)]
        hidden = [line.count(Relation.NONE) / len(line) for line in codes] or [0.0]
        return num_keys * (1 - sum(hidden) / len(hidden))

    def _grid(self, rows: range, cols: range) -> Any:
        start = self.p.structure.keys.start
        return self.p.grid(rows, range(start + cols.start, start + cols.stop))

    def _pairs(self, rows: range, cols: range) -> np.ndarray:
        array = self._evaluated(rows, cols) if self._codes is None else self._kept(rows, cols)
        return grouped_pairs(self.p, array, self.batch, (len(rows), len(cols)))[self.at]

    def _evaluated(self, rows: range, cols: range) -> Any:
        assert self.p.mask is not None
        return self.p.mask.block(self._grid(rows, cols))

    def _kept(self, rows: range, cols: range) -> np.ndarray:
        """Return the same from bits that are kept as long as the mask lives."""
        assert isinstance(self.p.mask, MappedMask)
        kept = self.p.mask.memo.setdefault("mha_numpy", {})
        if (rows, cols) not in kept:
            pairs = np.atleast_2d(self._evaluated(rows, cols))
            kept[rows, cols] = np.packbits(np.broadcast_to(pairs, (*pairs.shape[:-2], len(rows), len(cols))), axis=-1)
        return np.unpackbits(kept[rows, cols], axis=-1, count=len(cols)).view(bool)


def _slice(index: range) -> slice:
    return slice(index.start, index.stop)


def _shifted(index: range, by: int) -> range:
    return range(index.start + by, index.stop + by)


def grouped_pairs(p: AttentionProblem, array: Any, batch: tuple[int, ...], pairs: tuple[int, int]) -> np.ndarray:
    """Return an array that broadcasts to (..., H, l, s) as (..., K, G, l, s), a view."""
    return np.broadcast_to(array, (*batch, p.query.shape[-3], *pairs)).reshape(*batch, -1, p.num_groups, *pairs, copy=False)
