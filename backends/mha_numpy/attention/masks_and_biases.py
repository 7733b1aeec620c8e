"""Masks and biases of a tile: views of existing arrays, never copies."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol, Self

import numpy as np

from mha_core.plugin import place_of_pair

Heads = tuple[slice, slice]
"""Some batch elements, and some key heads."""


class PairValues(Protocol):
    """A number or a boolean for each pair of a query and a key."""

    def view(self, heads: Heads, rows: range, cols: range) -> np.ndarray:
        """Return the values of some queries (rows) and keys (cols); broadcasts to (batch, key heads, cols, rows, group)."""

    def element(self, b: int) -> Self:
        """Return the values of one batch element."""


@dataclass(slots=True)
class Matrix:
    """Values stored for each pair."""

    array: np.ndarray
    """(batch, key heads, group, L, S)."""

    def view(self, heads: Heads, rows: range, cols: range) -> np.ndarray:
        x = self.array if self.array.shape[:2] == (1, 1) else self.array[heads]  # one head broadcasts to all
        return x[..., rows.start : rows.stop, cols.start : cols.stop].transpose(0, 1, 4, 3, 2)

    def element(self, b: int) -> Self:
        return replace(self, array=self.array[b : b + 1])


@dataclass(slots=True)
class Toeplitz:
    """Values that depend on the distance query - key only, stored once for each distance."""

    values: np.ndarray
    """(batch, key heads, group, L + S - 1), at query - key + S - 1, contiguous; an axis of length 1 broadcasts."""
    num_keys: int
    """S."""

    def view(self, heads: Heads, rows: range, cols: range) -> np.ndarray:
        x, (by_element, by_head, by_group, step) = self.values, self.values.strides
        (b, b_stop), (k, k_stop) = ((0, 1) if n == 1 else some.indices(n)[:2] for some, n in zip(heads, x.shape, strict=False))
        first = b * by_element + k * by_head + place_of_pair(self.num_keys, rows.start, cols.start) * step
        shape = (b_stop - b, k_stop - k, len(cols), len(rows), x.shape[2])
        return np.ndarray(shape, x.dtype, x.data, first, (by_element, by_head, -step, step, by_group))

    def element(self, b: int) -> Self:
        return self if len(self.values) == 1 else replace(self, values=self.values[b : b + 1])
