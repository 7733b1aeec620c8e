"""Tiles of a problem: ranges of queries and keys, and which of them a band lets see each other, as integers alone.

A band is low <= key - query <= high. Seen from the keys it is a band too, -high <= query - key <= -low, so one formula says
which keys some queries see, and which queries see some keys. Rows are queries, and cols are keys.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple


class Tile(NamedTuple):
    """Some keys, and the queries that may see them."""

    cols: range
    rows: range
    cut: bool = False
    """True if the band hides some of these pairs."""
    mask: Any = None
    """The pairs that other masks let attend, as the kernel stores it."""


class Limits(NamedTuple):
    """The limits of a band, low <= key - query <= high; None: no limit."""

    low: int | None = None
    high: int | None = None

    def shifted(self, by: int) -> Limits:
        """Return the limits of key - query + ``by``."""
        low, high = self
        return Limits(None if low is None else low + by, None if high is None else high + by)

    def keys_of(self, rows: range, keys: range, *, every: bool = False) -> range:
        """Return the members of ``keys`` that at least one of ``rows`` sees; ``every``: that each of ``rows`` sees."""
        (low, high), start, stop = self, keys.start, keys.stop
        first, last = (rows.stop - 1, rows.start) if every else (rows.start, rows.stop - 1)
        if low is not None and first + low > start:
            start = first + low if first + low < stop else stop
        if high is not None and last + high < stop - 1:
            stop = last + high + 1 if last + high >= start else start
        return range(start, stop)

    def rows_of(self, cols: range, rows: range, *, every: bool = False) -> range:
        """Return the members of ``rows`` that see at least one of ``cols``; ``every``: that see each of ``cols``."""
        return _transposed(self).keys_of(cols, rows, every=every)

    def most_keys(self, num_rows: int, num_keys: int) -> int:
        """Return how many of ``num_keys`` keys ``num_rows`` adjacent queries see, at most."""
        low, high = self
        return num_keys if low is None or high is None else max(0, min(num_keys, high - low + num_rows))

    def tiles(self, rows: range, keys: range, size: int, edge: int) -> Iterator[Tile]:
        """Yield tiles that cover all pairs in the band: at most ``size`` keys each, ``edge`` where the band cuts across."""
        reached, every = self.keys_of(rows, keys), self.keys_of(rows, keys, every=True)
        spans = [range(reached.start, every.start), every, range(every.stop, reached.stop)] if every else [reached]
        for span in filter(None, spans):
            for cols in pieces(span, size if span is every else edge, even=True):
                seeing = rows if span is every else self.rows_of(cols, rows)
                if seeing:
                    yield Tile(cols, seeing, span is not every)


NO_LIMITS = Limits()
"""The band that hides no pair."""


@lru_cache(maxsize=1024)
def _transposed(band: Limits) -> Limits:
    """Return the limits of query - key. They are kept, because each tile of each call needs them."""
    low, high = band
    return Limits(None if high is None else -high, None if low is None else -low)


def pieces(index: range, size: int, *, even: bool = False) -> Sequence[range]:
    """Return successive ranges of at most ``size`` members, as few as possible; ``even``: of about the same length."""
    if len(index) <= size:
        return (index,) if index else ()
    step = -(-len(index) // -(-len(index) // size)) if even else size
    return [index[at : at + step] for at in range(0, len(index), step)]


def heads_together(batch: int, heads: int, size: int, *, even: bool = False) -> list[tuple[slice, slice]]:
    """Return about ``size`` heads at a time: all heads of some batch elements, or some heads of one element."""
    if size >= heads:
        return [(slice(b.start, b.stop), slice(0, heads)) for b in pieces(range(batch), size // heads, even=even)]
    shares = [slice(h.start, h.stop) for h in pieces(range(heads), size, even=even)]
    return [(slice(b, b + 1), share) for b in range(batch) for share in shares]
