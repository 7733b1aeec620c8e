"""Gradients of biases: sums of those of scores, over the axes along which an array is shared, or over pairs at one distance."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor

from mha_core.plugin import AttentionProblem, BiasSum

from .parts import Part, distances, place


class BlockSum(Protocol):
    """The gradient of a bias's array, summed over blocks."""

    def scores(self, heads: int, part: Part) -> Tensor:
        """Return memory for the gradients of a block of scores, (heads, l, s)."""

    def add(self, batch: int, heads: slice, part: Part, d: Tensor) -> None:
        """Add the gradients of scores, which are in memory that ``scores`` returned."""

    def whole(self) -> Tensor:
        """Return the sum, in the shape and dtype of the array."""


def bias_sum(p: AttentionProblem, *, turned: bool) -> BlockSum:
    """Return the sum of the gradient of the problem's bias; ``turned`` as in ``parts``."""
    return _SumByDistance(p) if turned else _SumOfArray(p)


class _SumOfArray:
    """The gradient of an array bias (Raffel et al. 2020, section 2.1, where it is learned)."""

    def __init__(self, p: AttentionProblem) -> None:
        bias: Any = p.bias
        self.array: Tensor = bias.array
        shape = (1,) * (3 - self.array.ndim) + tuple(self.array.shape)
        count = torch.Size(shape[:-3]).numel()
        of_batch = torch.arange(count).reshape(shape[:-3])
        self.of_batch: list[int] = of_batch.expand(p.batch_shape).reshape(-1).tolist()
        self.sum = torch.zeros((count, *shape[-3:]), dtype=p.compute_dtype, device=p.device)
        self.start = p.structure.keys.start

    def scores(self, heads: int, part: Part) -> Tensor:
        return self.sum.new_empty((heads, len(part.rows), len(part.cols)))

    def add(self, batch: int, heads: slice, part: Part, d: Tensor) -> None:
        target, start = self.sum[self.of_batch[batch]], self.start
        at = (heads, slice(part.rows.start, part.rows.stop), slice(start + part.cols.start, start + part.cols.stop))
        target = target[tuple(slice(0, 1) if size == 1 else some for some, size in zip(at, target.shape, strict=True))]
        target += d.sum_to_size(target.shape)

    def whole(self) -> Tensor:
        return self.sum.reshape(self.array.shape).to(self.array.dtype)


class _SumByDistance:
    """The gradient of a bias that depends on distance, by the sum over each diagonal of scores."""

    def __init__(self, p: AttentionProblem) -> None:
        self.p = p
        count = len(p.structure.keys) + p.query.shape[-2] - 1
        self.sum = torch.zeros((p.query.shape[-3], count), dtype=p.compute_dtype, device=p.device)

    def scores(self, heads: int, part: Part) -> Tensor:
        """Return a view of rows that end in zeros, one for each query."""
        rows, cols = len(part.rows), len(part.cols)
        return self.sum.new_zeros((heads, rows, cols + rows))[..., :cols]

    def add(self, batch: int, heads: slice, part: Part, d: Tensor) -> None:
        """Read the rows as if each were one element shorter: the next ones begin one place later, so diagonals are columns."""
        count, rows, cols = d.shape
        diagonals = d.as_strided((count, rows, rows + cols - 1), (rows * (rows + cols), rows + cols - 1, 1))
        self.sum[heads, place(self.p, part.rows, part.cols)] += diagonals.sum(-2)

    def whole(self) -> Tensor:
        bias: Any = self.p.bias
        total: BiasSum = bias.sum(self.p.xp)
        total.add(distances(self.p), self.sum[:, None, :])
        return total.whole(self.p.device)  # type: ignore[return-value]
