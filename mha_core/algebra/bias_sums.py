"""Biases by distance, and gradients of biases, for kernels that compute blocks of scores and write into arrays.

The algebra, which writes into no array, adds blocks by ``Bias.sum``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from .arrays import Array, at_least, sum_to
from .biases import ArrayBias, Bias
from .diagonals import keys_by_distance, places_of_block, skewed
from .grid import Grid
from .problem import AttentionProblem


def bias_by_distance(p: AttentionProblem) -> Array:
    """Return a bias that depends on the distance alone, once for each distance: (..., H, 1, L + S - 1)."""
    bias, grid = _by_distance(p)
    return bias.block(grid)


def gradient_by_distance(p: AttentionProblem, sums: Array) -> Array:
    """Return the gradient of such a bias's array from sums of those of scores at each distance, (H, L + S - 1)."""
    bias, grid = _by_distance(p)
    total = bias.sum(p.xp)
    total.add(grid, sums[:, None, :])
    return total.whole(p.device)


def _by_distance(p: AttentionProblem) -> tuple[Bias, Grid]:
    assert p.bias is not None
    return p.bias, p.grid(range(1), keys_by_distance(p.structure.keys, p.query.shape[-2]))


class ScoreSum(Protocol):
    """The gradient of a bias's array, to which the gradients of blocks of scores are added."""

    def add(self, at: Sequence[int | range], d: Any) -> None:
        """Add the gradients of scores at (..., H, L, S), at least one batch axis among them; ``d`` lacks the axes of ints."""

    def whole(self) -> Any:
        """Return the sum, in the shape and dtype of the array."""


def score_sum(p: AttentionProblem, *, last_key_first: bool = False) -> ScoreSum:
    """Return the sum for the problem's bias, by distance unless it is an array; ``last_key_first``: in the blocks."""
    return _SumOfArray(p, p.bias) if isinstance(p.bias, ArrayBias) else _SumByDistance(p, last_key_first)


class _SumOfArray:
    """The sum over the axes along which the array is shared."""

    def __init__(self, p: AttentionProblem, bias: ArrayBias) -> None:
        self.p, self.array = p, bias.array
        shape = at_least(p.xp, bias.array, 4).shape
        self.total: Any = p.xp.zeros(shape, dtype=p.compute_dtype, device=p.device)

    def add(self, at: Sequence[int | range], d: Any) -> None:
        *leading, cols = at[-self.total.ndim :]
        assert isinstance(cols, range)
        start = self.p.structure.keys.start
        index = (*leading, range(start + cols.start, start + cols.stop))
        target = self.total[tuple(map(_along, index, self.total.shape))]
        target += sum_to(self.p.xp, d, target.shape)

    def whole(self) -> Any:
        xp = self.p.xp
        return xp.astype(xp.reshape(self.total, self.array.shape), self.array.dtype, copy=False)


def _along(index: int | range, size: int) -> int | slice:
    """Return the index of an axis of a size, which is 1 if the array is shared along it."""
    if isinstance(index, int):
        return 0 if size == 1 else index
    return slice(0, 1) if size == 1 else slice(index.start, index.stop)


class _SumByDistance:
    """The sum over each diagonal of scores."""

    def __init__(self, p: AttentionProblem, last_key_first: bool) -> None:
        self.p, self.last_key_first = p, last_key_first
        count = len(p.structure.keys) + p.query.shape[-2] - 1
        self.total: Any = p.xp.zeros((p.query.shape[-3], count), dtype=p.compute_dtype, device=p.device)

    def add(self, at: Sequence[int | range], d: Any) -> None:
        xp, (heads, rows, cols) = self.p.xp, at[-3:]
        assert isinstance(heads, range) and isinstance(rows, range) and isinstance(cols, range)
        moved = skewed(xp, d if self.last_key_first else xp.flip(d, axis=-1))
        summed_axes = tuple(axis for axis in range(moved.ndim) if axis not in (moved.ndim - 3, moved.ndim - 1))
        target = self.total[heads.start : heads.stop, places_of_block(len(self.p.structure.keys), rows, cols)]
        target += xp.sum(moved, axis=summed_axes)

    def whole(self) -> Any:
        return gradient_by_distance(self.p, self.total)
