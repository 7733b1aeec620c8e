"""Masks and biases as kernel arguments: numbers where possible, arrays as they are, the rest computed block by block."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from mha_core.plugin import Alibi, ArrayBias, AttentionProblem, Call, Limits

FAR = 1 << 30  # more than any distance between a query and a key that the kernels count in 32 bits
_MIN_SCALE = 2.0**-126  # a smaller scale would be flushed to 0 on a device, and -inf times 0 is NaN


@dataclass(frozen=True, eq=False)
class MaskAndBias:
    """The mask and the bias of a problem, for one index of the batch axes before the last.

    Arrays are (b, h, l, s), with size 1 where they broadcast.
    """

    p: AttentionProblem
    index: tuple[int, ...]
    takes_spans: bool = False
    """True if the kernel has an argument for packed sequences."""

    @cached_property
    def is_computed(self) -> bool:
        """True if the mask or the bias must be computed for each block, because the kernel has no argument for it."""
        s, bias = self.p.structure, self.p.bias
        bias_is_argument = bias is None or isinstance(bias, ArrayBias) or self.slopes is not None
        return s.rest is not None or (s.packed is not None and not self.takes_spans) or not bias_is_argument

    @property
    def is_plain(self) -> bool:
        """True if only a band, lengths or spans modify the scores, and a larger product always gives a larger score."""
        p = self.p
        return (
            p.scale >= _MIN_SCALE
            and p.softcap is None
            and p.bias is None
            and p.structure.array is None
            and not self.is_computed
        )

    @property
    def every_row_sees(self) -> bool:
        """True if no query can be without a key: there is no mask, and no bias that may be -inf everywhere."""
        return self.p.mask is None and self.p.bias is None

    @cached_property
    def slopes(self) -> Any:
        """ALiBi slopes (H,), if the positions are known on the host and fit in 32 bits; else None."""
        bias, p = self.p.bias, self.p
        if not isinstance(bias, Alibi) or not isinstance(p.offset, int) or abs(self.shift) >= FAR:
            return None
        return p.xp.asarray(bias.slopes, dtype=p.compute_dtype, device=p.device)

    @cached_property
    def spans(self) -> Any:
        """(L, 2) in int32: the first key of each query's sequence, and the first key after it; None if not packed."""
        p, packed = self.p, self.p.structure.packed
        if packed is None:
            return None
        import numpy

        stops = numpy.cumsum(packed, dtype=numpy.int32)
        spans = numpy.stack([stops - numpy.asarray(packed, dtype=numpy.int32), stops], axis=-1)
        return p.xp.asarray(numpy.repeat(spans, packed, axis=0), device=p.device)

    @property
    def band(self) -> Limits:
        return Limits() if self.is_computed else self.p.structure.band

    @property
    def limits(self) -> tuple[int, int, int, int]:
        """Limits of col - row, whether they limit anything, and the shift of ALiBi's distances."""
        low, high = (far if x is None else x for x, far in zip(self.band, (-FAR, FAR), strict=True))
        return low, high, (low, high) != (-FAR, FAR), 0 if self.slopes is None else self.shift

    @property
    def shift(self) -> int:
        """Position of query 0 minus position of the first key that is kept."""
        return self.p.offset - self.p.structure.keys.start if isinstance(self.p.offset, int) else 0

    @cached_property
    def lengths(self) -> Any:
        """Key lengths (b,) in int64, or None."""
        p, lengths = self.p, self.p.structure.key_lengths
        if lengths is None or self.is_computed:
            return None
        lengths = p.xp.astype(lengths, p.xp.int64, copy=False)
        return with_batch(lengths[..., None, None, None], self.index)[:, 0, 0, 0]

    def mask(self, rows: range, cols: range) -> Any:
        """Return the boolean mask of a block, or None. ``cols`` counts the keys that are kept."""
        p, s = self.p, self.p.structure
        if self.is_computed:
            return None if p.mask is None else with_batch(p.mask.block(p.grid(rows, self._original(cols))), self.index)
        return None if s.array is None else _block(with_batch(s.array, self.index), rows, cols)

    def bias(self, rows: range, cols: range) -> Any:
        """Return the bias of a block; None if there is no bias, or if ``slopes`` describes it."""
        p = self.p
        if p.bias is None or (self.slopes is not None and not self.is_computed):
            return None
        if isinstance(p.bias, ArrayBias):
            return _block(with_batch(p.bias.array, self.index), rows, self._original(cols))
        return p.xp.astype(
            with_batch(p.bias.block(p.grid(rows, self._original(cols))), self.index), p.compute_dtype, copy=False
        )

    def _original(self, cols: range) -> range:
        """Return the keys' indices before any were dropped."""
        start = self.p.structure.keys.start
        return range(cols.start + start, cols.stop + start)


def supports_shapes(call: Call) -> str | None:
    """Return why the attention kernels do not support the shapes of a call; None if they do."""
    sizes = [size for _, shape in call.shapes for size in shape]
    if 0 in sizes:
        return "does not support empty axes"
    return f"supports axes up to {FAR - 1}, not {max(sizes)}" if max(sizes, default=0) >= FAR else None


def with_batch(x: Any, index: tuple[int, ...]) -> Any:
    """Return x (..., h, l, s), which broadcasts over the batch, as (b, h, l, s) for one index of the batch axes before b."""
    x = x[(None,) * max(0, 4 - x.ndim) + (...,)]
    lead = x.ndim - 4
    index = index[len(index) - lead :]
    return x[tuple(0 if size == 1 else at for size, at in zip(x.shape[:lead], index, strict=True))]


def along(x: Any, axis: int, index: range) -> Any:
    """Return a range of an axis as a view; all of the axis if it broadcasts."""
    return x if x.shape[axis] == 1 else x[(slice(None),) * axis + (slice(index.start, index.stop),)]


def _block(x: Any, rows: range, cols: range) -> Any:
    return along(along(x, 2, rows), 3, cols)
