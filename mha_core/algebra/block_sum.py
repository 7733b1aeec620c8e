"""Sums of blocks: arrays that grow from contributions to parts of their last two axes, without writing into an array."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from .arrays import Array, Namespace, sum_to

_Interval = tuple[int, int]


class BlockSum:
    """An array that is 0 but for the sum of blocks, each at some rows and columns of its last two axes.

    Blocks form a grid: two of them have the same rows, or no row in common, and likewise the same columns, or none.
    Along an axis of length 1, as of an array that broadcasts, every block is summed.
    """

    def __init__(self, xp: Namespace, shape: Sequence[int]) -> None:
        self.xp, self.shape = xp, tuple(shape)
        self._blocks: dict[tuple[_Interval, _Interval], Array] = {}

    def add(self, rows: range, cols: range, block: Array) -> Array:
        """Add ``block``, which broadcasts from the leading axes of the array, at ``rows`` and ``cols``; return their sum."""
        at = tuple(
            (0, 1) if size == 1 else (span.start, span.stop) for span, size in zip((rows, cols), self.shape[-2:], strict=True)
        )
        block = sum_to(self.xp, block, (*self.shape[:-2], *(stop - start for start, stop in at)))
        self._blocks[at] = block if at not in self._blocks else self._blocks[at] + block  # type: ignore[index]
        return self._blocks[at]  # type: ignore[index]

    def whole(self, dtype: Any, device: Any) -> Array:
        """Return the array in a dtype."""
        xp = self.xp
        rows, cols = (list(_filled((at[axis] for at in self._blocks), self.shape[axis - 2])) for axis in (0, 1))

        def block(at: tuple[_Interval, _Interval]) -> Array:
            if at in self._blocks:
                return xp.astype(self._blocks.pop(at), dtype, copy=False)
            (top, bottom), (left, right) = at
            return xp.zeros((*self.shape[:-2], bottom - top, right - left), dtype=dtype, device=device)

        strips = [[block((row, col)) for col in cols] for row in rows]
        joined = [strip[0] if len(strip) == 1 else xp.concat(strip, axis=-1) for strip in strips]
        return joined[0] if len(joined) == 1 else xp.concat(joined, axis=-2)


def _filled(intervals: Iterable[_Interval], size: int) -> Iterator[_Interval]:
    """Yield intervals in order, and the gaps between them up to ``size``; one of them at least, which may be empty."""
    end = 0
    for start, stop in sorted(set(intervals)):
        if start > end:
            yield end, start
        if stop > start:
            yield start, stop
        end = stop
    if end < size or not size:
        yield end, size
