"""Gradients of biases: those of the scores of a tile, summed over the pairs that share a number of the bias."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from mha_core.plugin import BiasSum, Tile, places_of_block

from ..scratch import scratch
from .masks_and_biases import Heads


class BiasGradient(Protocol):
    """The gradient of a bias; the gradients of the scores of tiles are added to it."""

    def room(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        """Return memory for the gradients of a tile, (batch, key heads, cols, rows * group), valid until they are added."""

    def add(self, heads: Heads, tile: Tile, ds: np.ndarray) -> None:
        """Add the gradients of a tile, which are in ``room``."""


@dataclass(slots=True)
class MatrixGradient:
    """The gradient of a bias that is stored for each pair."""

    array: np.ndarray
    """(batch, key heads, group, L, S), the view of the bias in ``Matrix``; an axis that was broadcast has stride 0."""

    def room(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        return scratch("d_scores", shape, dtype)

    def add(self, heads: Heads, tile: Tile, ds: np.ndarray) -> None:
        target = self.array[heads][..., tile.rows.start : tile.rows.stop, tile.cols.start : tile.cols.stop]
        target = target.transpose(0, 1, 4, 3, 2)
        pairs = ds.reshape(target.shape, copy=False)
        wide = tuple(axis for axis, stride in enumerate(target.strides) if stride == 0)
        if wide:
            pairs = np.add.reduce(pairs, axis=wide, keepdims=True)
            target = target[tuple(slice(0, 1) if axis in wide else slice(None) for axis in range(5))]
        target.flags.writeable = True  # np.broadcast_to returns a view that is not, of an array that is
        target += pairs


@dataclass(slots=True)
class FunctionGradient:
    """The gradients of the arrays of a score function, which the function's pullback returns for each tile."""

    sums: BiasSum
    grid: Any
    """A block of the problem, whose dtype is that of the sums."""

    def room(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        return scratch("d_scores", shape, dtype)

    def add(self, heads: Heads, tile: Tile, ds: np.ndarray) -> None:
        pass

    def add_arrays(self, of_arrays: Any) -> None:
        """Add the gradients of the arrays from one tile."""
        self.sums.add(self.grid, of_arrays)


@dataclass(slots=True)
class DistanceGradient:
    """The gradient of a bias that depends on the distance query - key only."""

    sums: np.ndarray
    """(key heads, group, L + S - 1), at query - key + S - 1, as in ``Toeplitz``."""
    num_keys: int
    """S."""

    def room(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        """Return rows with zeros behind each: ``add`` reads the memory in longer rows, whose columns are distances."""
        (*stack, cols, numbers), group = shape, self.sums.shape[1]
        whole = scratch("d_scores", (*stack, cols * (numbers + (cols + 1) * group)), dtype)
        length = numbers + cols * group
        rows = whole[..., : cols * length].reshape(*stack, cols, length, copy=False)
        whole[..., cols * length :] = 0
        rows[..., numbers:] = 0
        return rows[..., :numbers]

    def add(self, heads: Heads, tile: Tile, ds: np.ndarray) -> None:
        (*stack, cols, numbers), group = ds.shape, self.sums.shape[1]
        length = numbers + (cols + 1) * group
        skewed = scratch("d_scores", (*stack, cols, length), ds.dtype)
        by_distance = np.matmul(np.ones((1, cols), dtype=ds.dtype), skewed)[:, :, 0]
        by_distance = np.add.reduce(by_distance, axis=0)  # the distances -1, -2, ... are the last ones
        by_distance = np.concatenate([by_distance[:, length - (cols - 1) * group :], by_distance[:, :numbers]], axis=1)
        by_distance = by_distance.reshape(len(by_distance), -1, group).swapaxes(1, 2)
        self.sums[heads[1], :, places_of_block(self.num_keys, tile.rows, tile.cols)] += by_distance
