"""Functions that take the place of scores, applied to tiles, and their gradients."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from typing import Any, NamedTuple

import numpy as np

from mha_core.plugin import AttentionProblem, Tile

from .masks_and_biases import Heads


class _Pairs(NamedTuple):
    """The indices of the pairs of a tile, as in ``Grid``; all broadcast to ``shape``, (batch, key heads, cols, rows, group)."""

    batch_index: np.ndarray
    head_index: np.ndarray
    query_position: np.ndarray
    key_index: np.ndarray
    shape: tuple[int, ...]
    dtype: Any
    xp: Any = np


class FunctionOfTile:
    """The score function of a problem, for the batch elements at ``at`` of its leading batch axes; ``batch``: all of them."""

    def __init__(self, p: AttentionProblem, batch: tuple[int, ...], at: tuple[int, ...]) -> None:
        self.function: Any = p.bias
        self.first_key = p.structure.keys.start
        self.numbers = np.arange(np.prod(batch)).reshape(batch)[at]
        self.heads = np.arange(p.query.shape[-3]).reshape(-1, 1, 1, p.num_groups)
        offset: Any = p.offset
        self.offset = np.broadcast_to(offset, batch)[at].astype(np.int64)

    def element(self, b: int) -> FunctionOfTile:
        """Return the function of one batch element."""
        one = copy(self)
        one.numbers, one.offset = self.numbers[b : b + 1], self.offset[b : b + 1]
        return one

    def apply(self, scores: np.ndarray, heads: Heads, tile: Tile) -> None:
        """Replace the scores of a tile, (batch, key heads, cols, rows, group)."""
        scores[...] = self.function.added(scores, self._pairs(scores, heads, tile))

    def pullback(
        self, scores: np.ndarray, heads: Heads, tile: Tile, *, of_arrays: bool
    ) -> tuple[np.ndarray, Callable[[np.ndarray], Any]]:
        """Return the new scores of a tile, and a function from their gradient to those of the old ones and of the arrays."""
        value, pull = self.function.pullback(scores, self._pairs(scores, heads, tile), of_arrays=of_arrays)
        return value, pull

    def _pairs(self, scores: np.ndarray, heads: Heads, tile: Tile) -> _Pairs:
        elements, key_heads = heads
        offset = self.offset[elements].reshape(-1, 1, 1, 1, 1)
        offset = offset[:1] if (offset == offset[:1]).all() else offset
        return _Pairs(
            self.numbers[elements].reshape(-1, 1, 1, 1, 1),
            self.heads[key_heads],
            np.arange(tile.rows.start, tile.rows.stop)[:, None] + offset,
            np.arange(self.first_key + tile.cols.start, self.first_key + tile.cols.stop)[:, None, None],
            scores.shape,
            scores.dtype,
        )
