"""Which scores are computed together: blocks that leave out what a band leaves out, of a size that memory allows.

Python launches a block in some 0.1 ms, whatever its size. In that time an H200 writes and reads as many scores as BUSIEST: of
smaller blocks it is done before the next is launched.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

SCORES = 1 << 22  # in a block of a small problem: 16 MB of float32, and half as much of weights
BUSIEST = 1 << 25  # in a block of a large one: 128 MB, and half as much
PARTS = 8  # between the two, of all scores: what a problem takes stays far below what writing all of them would take
WIDEST = 1 << 14  # keys in a row of a block: 1024 threads with 16 numbers of 4 bytes each, or 8 of 8 bytes
BANDED = 1024  # queries in a block of a band: fewer would make products small, more would compute what none sees

Limits = tuple[int | None, int | None]


@dataclass(frozen=True)
class Block:
    """Batch elements, key heads, and queries; all that they may see stands in ``cols``, in parts of one block's width."""

    batch: range
    heads: range
    rows: range
    cols: tuple[range, ...]


def blocks(
    batch: int,
    heads: int,
    groups: int,
    num_rows: int,
    num_cols: int,
    band: Limits,
    *,
    copies: int = 0,
    scores: int | None = None,
    widest: int | None = None,
) -> Iterator[Block]:
    """Every (batch element, key head, query) in one block.

    groups: query heads of a key head. copies: of a mask or bias that is computed for a block, for how many batch elements and
    heads; all of them count. scores, widest: of a block, where not what stands above.
    """
    if scores is None:
        scores = max(SCORES, min(BUSIEST, batch * heads * groups * num_rows * num_cols // PARTS))
    widest = WIDEST if widest is None else widest
    rows_at_once = num_rows if band == (None, None) else min(num_rows, BANDED)
    reach = max(
        len(reached(range(at, min(num_rows, at + rows_at_once)), num_cols, band)) for at in _ends(num_rows, rows_at_once)
    )
    each = max(1, min(reach, widest))
    rows_at_once = max(1, min(rows_at_once, scores // max(groups * each, copies * reach, 1)))
    heads_at_once = max(1, min(heads, scores // (groups * rows_at_once * each)))
    batch_at_once = max(1, min(batch, scores // (groups * rows_at_once * each * heads))) if heads_at_once == heads else 1
    for rows in _split(range(num_rows), rows_at_once):
        cols = tuple(_split(reached(rows, num_cols, band), widest))
        for elements in _split(range(batch), batch_at_once):
            for some in _split(range(heads), heads_at_once):
                yield Block(elements, some, rows, cols)


def reached(rows: range, num_cols: int, band: Limits) -> range:
    """The keys that some of these queries may see."""
    low, high = band
    start = 0 if low is None else max(0, rows.start + low)
    stop = num_cols if high is None else min(num_cols, rows.stop + high)
    return range(start, max(start, stop))


def shape_of_block(num_cols: int) -> tuple[int, int]:
    """Threads for a row of so many keys, and how many keys each has: at most 1024 and 16."""
    threads = 32
    while threads < 1024 and threads * 4 < num_cols:
        threads *= 2
    each = 1
    while threads * each < num_cols:
        each *= 2
    return threads, each


def _ends(num_rows: int, at_once: int) -> Iterator[int]:
    """Where the first block begins, one in the middle and the last: no block of a band reaches further."""
    last = max(0, num_rows - at_once)
    yield from {0, last // 2, last}


def _split(index: range, size: int) -> Iterator[range]:
    return (index[at : at + size] for at in range(0, len(index), size))
