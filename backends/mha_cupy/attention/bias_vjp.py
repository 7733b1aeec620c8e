"""Gradients of biases, summed over blocks of scores: over the axes along which an array is shared, or over equal distances."""

from __future__ import annotations

from typing import Any, Protocol

from mha_core.plugin import ArrayBias, AttentionProblem, BiasSum, sum_to

from .mask_and_bias import along, with_batch
from .partition import Block


class BlockSum(Protocol):
    """The gradient of a bias's array, summed over blocks."""

    def add(self, index: tuple[int, ...], block: Block, cols: range, d: Any) -> None:
        """Add the gradients of scores, (b, h, l, s); ``index``: as in ``MaskAndBias``."""

    def whole(self) -> Any:
        """Return the sum, in the shape and dtype of the array."""


def bias_sum(p: AttentionProblem) -> BlockSum:
    """Return the sum of the gradient of the problem's bias, which is an array or a relative bias."""
    return _SumOfArray(p) if isinstance(p.bias, ArrayBias) else _SumByDistance(p)


def _heads(p: AttentionProblem, block: Block) -> range:
    return range(block.heads.start * p.num_groups, block.heads.stop * p.num_groups)


class _SumOfArray:
    def __init__(self, p: AttentionProblem) -> None:
        self.p, self.array = p, p.bias.array  # type: ignore[union-attr]
        self.total: Any = p.xp.zeros(self.array.shape, dtype=p.compute_dtype, device=p.device)

    def add(self, index: tuple[int, ...], block: Block, cols: range, d: Any) -> None:
        p, start = self.p, self.p.structure.keys.start
        of_array = range(start + cols.start, start + cols.stop)
        target = with_batch(self.total, index)  # a view
        for axis, some in enumerate((block.batch, _heads(p, block), block.rows, of_array)):
            target = along(target, axis, some)
        target += sum_to(p.xp, d, target.shape)

    def whole(self) -> Any:
        return self.p.xp.astype(self.total, self.array.dtype, copy=False)


class _SumByDistance:
    """First the sum over each diagonal of scores, along which key - query is the same; then over the distances of a bucket."""

    def __init__(self, p: AttentionProblem) -> None:
        self.p, self.queries = p, p.query.shape[-2]
        count = len(p.structure.keys) + self.queries - 1
        self.total: Any = p.xp.zeros((p.query.shape[-3], count), dtype=p.compute_dtype, device=p.device)

    def add(self, index: tuple[int, ...], block: Block, cols: range, d: Any) -> None:
        """Read rows as if each were one element shorter: the next ones begin one place later, so diagonals are columns."""
        p, xp = self.p, self.p.xp
        batch, heads, num_rows, num_cols = d.shape
        padded: Any = xp.zeros((batch, heads, num_rows, num_cols + num_rows), dtype=d.dtype, device=p.device)
        padded[..., :num_cols] = d[:, :, ::-1, :]
        shorter = num_rows + num_cols - 1
        flat = xp.reshape(padded, (batch, heads, -1))[..., : num_rows * shorter]
        diagonals = xp.sum(xp.reshape(flat, (batch, heads, num_rows, shorter)), axis=(0, 2))
        first = cols.start - block.rows.stop + self.queries
        some = _heads(p, block)
        self.total[some.start : some.stop, first : first + shorter] += diagonals

    def whole(self) -> Any:
        p, keys = self.p, self.p.structure.keys
        found: BiasSum = p.bias.sum(p.xp)  # type: ignore[union-attr]
        found.add(p.grid(range(1), range(keys.start - self.queries + 1, keys.stop)), self.total[:, None, :])
        return found.whole(p.device)
