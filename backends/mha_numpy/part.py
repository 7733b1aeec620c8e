"""Attention as tiles see it: one batch axis, heads in groups that share keys, and what of a mask cuts across which tile."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any, NamedTuple, Self

import numpy as np

from .base import Base
from .scratch import usable
from .terms import Heads, Line, Matrix, Term


class Chunk(NamedTuple):
    """Keys that are looked at together, and the queries that may see them.

    cut: the band hides some of these pairs. block: which of them a mask lets through, (batch, key heads, group, rows, cols).
    """

    cols: range
    rows: range
    cut: bool = False
    block: np.ndarray | None = None


@dataclass(slots=True, eq=False)
class Part:
    """query (B, K, G, L, D), key (B, K, S, D), value (B, K, S, E), out (B, K, G, L, E), lse (B, K, G, L): views throughout.

    dtype: of the sums. scale: of the scores, in units of the exponential's base, or of the softcap where there is one.
    sink: (K, G). band: low <= key - query <= high. mask: True where a pair attends. blocks(rows, cols):
    of a mask that has no tile form, None where it hides nothing, False where it hides all.
    """

    query: np.ndarray
    key: np.ndarray
    value: np.ndarray
    out: np.ndarray
    lse: np.ndarray | None
    dtype: Any
    base: Base
    scale: float
    softcap: float | None = None
    sink: np.ndarray | None = None
    band: tuple[int | None, int | None] = (None, None)
    mask: Matrix | None = None
    bias: Term | None = None
    blocks: Callable[[range, range], Any] | None = None
    sequences: tuple[int, ...] = ()
    """Lengths of sequences laid end to end, which the mask keeps apart: as far as numbers are numbers."""
    longest: dict[tuple[int, int], float] = field(default_factory=dict)
    """The norm of the longest key of some heads, once it is known."""
    _lines: tuple[Line, Line] | None = None

    @property
    def num_keys(self) -> int:
        return self.key.shape[2]

    @property
    def copies(self) -> bool:
        """Whether keys and values are copied, a tile's at a time."""
        return not (usable(self.key, self.dtype) and usable(self.value, self.dtype))

    def element(self, b: int, num_keys: int) -> Self:
        """One batch element, and its first keys."""
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

    def apart(self, rows: range) -> Iterator[tuple[Self, range]]:
        """Each sequence on its own, and which of its queries are among ``rows``: a tile of several would spread a NaN."""
        for stop, length in zip(accumulate(self.sequences), self.sequences, strict=True):
            start, own = stop - length, slice(stop - length, stop)
            some = range(max(rows.start, start) - start, min(rows.stop, stop) - start)
            if not some:
                continue
            alone = replace(
                self,
                query=self.query[:, :, :, own],
                key=self.key[:, :, own],
                value=self.value[:, :, own],
                out=self.out[:, :, :, own],
                lse=None if self.lse is None else self.lse[:, :, :, own],
                mask=None,
                sequences=(),
                longest={},
                _lines=None,
            )
            yield alone, some

    def reach(self, rows: range) -> range:
        """The keys that any of these queries may see."""
        low, high = self.band
        start = 0 if low is None else max(0, rows.start + low)
        return range(start, self.num_keys if high is None else max(start, min(self.num_keys, rows.stop + high)))

    def chunks(self, rows: range, size: int, edge: int) -> list[Chunk]:
        """The keys that these queries reach, some ``size`` at a time, and ``edge`` where the band cuts across."""
        found = list(self._chunks(rows, size, edge))
        if self.blocks is None:
            return found
        blocks = [(chunk, self.blocks(rows, chunk.cols)) for chunk in found]
        return [chunk._replace(block=block) for chunk, block in blocks if block is not False]

    def _chunks(self, rows: range, size: int, edge: int) -> Iterator[Chunk]:
        (low, high), reach = self.band, self.reach(rows)
        start = reach.start if low is None else max(reach.start, rows.stop - 1 + low)
        stop = reach.stop if high is None else min(reach.stop, rows.start + high + 1)
        if start >= stop:  # no key is seen by all
            yield from self._edge(rows, reach, edge)
            return
        yield from self._edge(rows, range(reach.start, start), edge)
        for cols in evenly(range(start, stop), size):
            yield Chunk(cols, rows)
        yield from self._edge(rows, range(stop, reach.stop), edge)

    def _edge(self, rows: range, cols: range, size: int) -> Iterator[Chunk]:
        low, high = self.band
        for some in evenly(cols, size):
            start = rows.start if high is None else max(rows.start, some.start - high)
            stop = rows.stop if low is None else min(rows.stop, some.stop - low)
            if start < stop:
                yield Chunk(some, range(start, stop), cut=True)

    def corners(self, chunk: Chunk) -> list[range]:
        """The queries of a chunk that the band keeps from some of its keys."""
        (low, high), cols, rows = self.band, chunk.cols, chunk.rows
        after = rows.start if high is None else min(rows.stop, max(rows.start, cols.stop - 1 - high))
        before = rows.stop if low is None else max(rows.start, min(rows.stop, cols.start - low + 1))
        return [rows] if after >= before else [x for x in (range(rows.start, after), range(before, rows.stop)) if x]

    def band_lines(self) -> tuple[Line, Line]:
        """Whether the band hides a pair; and 0 where it does, 1 elsewhere."""
        if self._lines is None:
            low, high = self.band
            distance = np.arange(1 - self.num_keys, self.query.shape[3])  # query - key
            hidden = np.zeros(distance.size, dtype=bool)
            if high is not None:
                hidden |= distance < -high
            if low is not None:
                hidden |= distance > -low
            shown = (~hidden).astype(self.dtype)
            self._lines = Line(hidden[None, None, None], self.num_keys), Line(shown[None, None, None], self.num_keys)
        return self._lines

    def masks(self, heads: Heads, chunk: Chunk) -> Iterator[np.ndarray]:
        """Truths that broadcast to (batch, key heads, cols, rows, group), other than the band's."""
        if self.mask is not None:
            yield self.mask.tile(heads, chunk.rows, chunk.cols)
        if chunk.block is not None:
            yield chunk.block[heads].transpose(0, 1, 4, 3, 2)


def evenly(index: range, size: int) -> Iterable[range]:
    """As few parts as can be, none of them much shorter than the others."""
    if len(index) <= size:
        return (index,) if index else ()
    each = -(-len(index) // -(-len(index) // size))
    return (index[at : at + each] for at in range(0, len(index), each))
