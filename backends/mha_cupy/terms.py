"""What the softmax kernel is told of a mask and a bias: numbers where it has words, arrays as they lie, the rest by block."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from mha_core.plugin import Alibi, ArrayBias, AttentionProblem, Call

FAR = 1 << 30  # beyond any distance between a query and a key that are counted in 32 bits
_LEAST = 2.0**-126  # a scale below would be 0 on a device, and -inf times 0 no number
Limits = tuple[int | None, int | None]


@dataclass(frozen=True, eq=False)
class Terms:
    """Of a problem at one place of its batch axes but the last. Arrays are (b, h, l, s), with 1 where they broadcast."""

    p: AttentionProblem
    index: tuple[int, ...]
    reads_spans: bool = False
    """Whether the kernel has words for sequences that lie end to end."""

    @cached_property
    def is_computed(self) -> bool:
        """Whether mask and bias are made for each block: one of them is no array, and the kernel has no words for it."""
        s, bias = self.p.structure, self.p.bias
        words = bias is None or isinstance(bias, ArrayBias) or self.slopes is not None
        return s.rest is not None or (s.packed is not None and not self.reads_spans) or not words

    @property
    def is_plain(self) -> bool:
        """Whether nothing but a band, lengths or spans stands between scores and softmax, and scores grow with products."""
        p = self.p
        return p.scale >= _LEAST and p.softcap is None and p.bias is None and p.structure.array is None and not self.is_computed

    @cached_property
    def slopes(self) -> Any:
        """Of ALiBi, (H,), where the host knows the positions, and 32 bits count them."""
        bias, p = self.p.bias, self.p
        if not isinstance(bias, Alibi) or not isinstance(p.offset, int) or abs(self.shift) >= FAR:
            return None
        return p.xp.asarray(bias.slopes, dtype=p.compute_dtype, device=p.device)

    @cached_property
    def spans(self) -> Any:
        """(L, 2), in int32: which keys stand in the sequence of each query, from the first to before the second."""
        p, packed = self.p, self.p.structure.packed
        if packed is None:
            return None
        import numpy

        stops = numpy.cumsum(packed, dtype=numpy.int32)
        spans = numpy.stack([stops - numpy.asarray(packed, dtype=numpy.int32), stops], axis=-1)
        return p.xp.asarray(numpy.repeat(spans, packed, axis=0), device=p.device)

    @property
    def band(self) -> Limits:
        return (None, None) if self.is_computed else self.p.structure.band

    @property
    def shift(self) -> int:
        """Between the index of a query and its position, where keys are counted from the first that remains."""
        return self.p.offset - self.p.structure.keys.start if isinstance(self.p.offset, int) else 0

    @cached_property
    def lengths(self) -> Any:
        """(b,), in int64."""
        p, lengths = self.p, self.p.structure.key_lengths
        if lengths is None or self.is_computed:
            return None
        lengths = p.xp.astype(lengths, p.xp.int64, copy=False)
        return with_batch(lengths[..., None, None, None], self.index)[:, 0, 0, 0]

    def mask(self, rows: range, cols: range) -> Any:
        """Booleans of a block, counted in the keys that remain."""
        p, s = self.p, self.p.structure
        if self.is_computed:
            return None if p.mask is None else with_batch(p.mask.block(p.grid(rows, self._of_the_caller(cols))), self.index)
        return None if s.array is None else _pairs(with_batch(s.array, self.index), rows, cols)

    def bias(self, rows: range, cols: range) -> Any:
        """Numbers of a block; None where ``slopes`` tell them."""
        p = self.p
        if p.bias is None or (self.slopes is not None and not self.is_computed):
            return None
        if isinstance(p.bias, ArrayBias):
            return _pairs(with_batch(p.bias.array, self.index), rows, self._of_the_caller(cols))
        return p.xp.astype(
            with_batch(p.bias.block(p.grid(rows, self._of_the_caller(cols))), self.index), p.compute_dtype, copy=False
        )

    def _of_the_caller(self, cols: range) -> range:
        start = self.p.structure.keys.start
        return range(cols.start + start, cols.stop + start)


def countable(call: Call) -> str | None:
    """What kernels of attention have against sizes."""
    sizes = [size for _, shape in call.shapes for size in shape]
    if 0 in sizes:
        return "has no empty axes"
    return f"counts in 32 bits, up to {FAR - 1}" if max(sizes, default=0) >= FAR else None


def with_batch(x: Any, index: tuple[int, ...]) -> Any:
    """(..., h, l, s), which broadcasts over the batch, as (b, h, l, s) at one place of the batch axes before the last."""
    x = x[(None,) * max(0, 4 - x.ndim) + (...,)]
    lead = x.ndim - 4
    places = index[len(index) - lead :]
    return x[tuple(0 if size == 1 else at for size, at in zip(x.shape[:lead], places, strict=True))]


def part(x: Any, axis: int, index: range) -> Any:
    """Some of an axis, a view; all of one that broadcasts."""
    return x if x.shape[axis] == 1 else x[(slice(None),) * axis + (slice(index.start, index.stop),)]


def _pairs(x: Any, rows: range, cols: range) -> Any:
    return part(part(x, 2, rows), 3, cols)
