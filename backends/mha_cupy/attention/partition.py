"""Partition a problem into blocks of scores, each small enough for memory; scores outside the band are left out.

Python needs about 0.1 ms to launch the kernels of a block, whatever its size. In that time an H200 writes and reads MAX_SCORES
scores, so it finishes a smaller block before the next one is launched.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from mha_core.plugin import Limits, heads_together, pieces

MIN_SCORES = 1 << 22  # scores in a block of a small problem: 16 MB of float32, and half as much for the weights
MAX_SCORES = 1 << 25  # scores in a block of a large problem: 128 MB, and half as much
NUM_BLOCKS = 8  # blocks in a problem between the two: far less memory than for all of its scores
MAX_KEYS = 1 << 14  # keys in a row of a block: 1024 threads with 16 numbers of 4 bytes each, or 8 of 8 bytes
BAND_QUERIES = 1024  # queries in a block of a band: fewer make products small, more compute scores outside the band


@dataclass(frozen=True)
class ScoreBlock:
    """The scores of some batch elements, key heads and queries with every key in their band."""

    batch: range
    heads: range
    rows: range
    cols: tuple[range, ...]
    """The keys, in consecutive chunks of at most MAX_KEYS."""


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
    max_keys: int = MAX_KEYS,
) -> Iterator[ScoreBlock]:
    """Yield blocks that cover each (batch element, key head, query) once.

    Parameters
    ----------
    heads, groups : int
        Key heads, and query heads for each of them.
    copies : int
        Batch elements times heads of a mask or bias that is computed for each block; 0 if neither is.
    scores, max_keys : int
        Scores in a block, and keys in a row of it, at most. By default the constants above decide.
    """
    if scores is None:
        scores = scores_of_block(batch * heads * groups * num_rows * num_cols)
    most = num_rows if band == Limits() else min(num_rows, BAND_QUERIES)
    reach = max(1, band.most_keys(most, num_cols))
    width = min(reach, max_keys)
    most = max(1, min(most, scores // max(groups * width, copies * reach)))
    together = heads_together(batch, heads, max(1, scores // (groups * most * width)))
    for rows in pieces(range(num_rows), most):
        cols = tuple(pieces(band.keys_of(rows, range(num_cols)), max_keys))
        for elements, key_heads in together:
            yield ScoreBlock(range(elements.start, elements.stop), range(key_heads.start, key_heads.stop), rows, cols)


def scores_of_block(total: int) -> int:
    """Return how many scores a block has in a problem with ``total`` scores."""
    return max(MIN_SCORES, min(MAX_SCORES, total // NUM_BLOCKS))


def threads_of_row(num_cols: int) -> tuple[int, int]:
    """Return how many threads a row of scores has, at most 1024, and how many scores each of them holds, at most 16."""
    threads = 32
    while threads < 1024 and threads * 4 < num_cols:
        threads *= 2
    each = 1
    while threads * each < num_cols:
        each *= 2
    return threads, each
