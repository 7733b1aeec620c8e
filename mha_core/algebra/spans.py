"""Tiles of a block map, joined where they are alike."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

from .functions import BLOCK
from .grid import Relation


class Span(NamedTuple):
    """Some queries and keys. All of their pairs attend, but for those of the queries in ``masked``, of which only some may."""

    rows: range
    cols: range
    masked: tuple[range, ...]


def spans(codes: Sequence[Sequence[int]], rows: range, cols: range, *, width: int = 1) -> Iterator[Span]:
    """Yield spans that cover all attending pairs of some queries and keys.

    ``codes``: the ``Relation`` of each tile of ``BLOCK`` queries, from query 0 on, and ``BLOCK`` keys, from key 0 on.
    ``width``: the number of neighbouring tiles of keys that are never cut apart.
    """
    first, tiles = rows.start // BLOCK, slice(cols.start // BLOCK, (cols.stop - 1) // BLOCK + 1)
    columns = list(zip(*(line[tiles] for line in codes[first : (rows.stop - 1) // BLOCK + 1]), strict=True))
    wide = [tuple(map(_joined, zip(*columns[at : at + width], strict=True))) for at in range(0, len(columns), width)]
    start = tiles.start
    for column, group in groupby(wide):
        stop = start + len(list(group)) * width
        seen = [at for at, code in enumerate(column) if code != Relation.NONE]
        if seen:
            doubts = [at for at in range(seen[0], seen[-1] + 1) if column[at] != Relation.ALL]
            neighbours = groupby(enumerate(doubts), key=lambda pair: pair[1] - pair[0])
            masked = tuple(_members(rows, first, [at for _, at in tiles]) for _, tiles in neighbours)
            yield Span(_members(rows, first, seen), _members(cols, 0, (start, stop - 1)), masked)
        start = stop


def _joined(codes: tuple[int, ...]) -> int:
    """Return the ``Relation`` of neighbouring tiles together."""
    return codes[0] if len(set(codes)) == 1 else Relation.SOME


def _members(index: range, first: int, tiles: Sequence[int]) -> range:
    """Return the members of an index from the first to the last of some tiles."""
    return range(max(index.start, (first + tiles[0]) * BLOCK), min(index.stop, (first + tiles[-1] + 1) * BLOCK))
