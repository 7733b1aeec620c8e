"""Matrices that depend on the distance key - query alone, and sums over the pairs at each distance.

Such a matrix has equal numbers along each diagonal (it is a Toeplitz matrix), so it is kept as one number for each distance: of
L queries and S keys, that of the pair (i, j) at place i - j + S - 1. The farthest key comes first.
"""

from __future__ import annotations

from .arrays import Array, Namespace, device_of


def keys_by_distance(keys: range, num_queries: int) -> range:
    """Return keys that have, from query 0, the distances of all pairs, in the order of their places."""
    return range(keys.stop - 1, keys.start - num_queries, -1)


def place_of_pair(num_keys: int, row: int, col: int) -> int:
    """Return the place of the distance of a query and a key."""
    return row - col + num_keys - 1


def places_of_block(num_keys: int, rows: range, cols: range) -> slice:
    """Return the places of the distances in a block of successive queries and keys."""
    first = place_of_pair(num_keys, rows.start, cols.stop - 1)
    return slice(first, first + len(rows) + len(cols) - 1)


def skewed(xp: Namespace, x: Array) -> Array:
    """Return (..., l, s) with row i moved i columns further, (..., l, l + s - 1), and 0 elsewhere.

    Then columns are antidiagonals; they are diagonals, in the order of places, if the last key comes first in ``x``.
    """
    rows, cols = x.shape[-2:]
    # with l zeros behind each row, rows of one element less begin one place later each
    zeros = xp.zeros((*x.shape[:-1], rows), dtype=x.dtype, device=device_of(x))
    flat = xp.reshape(xp.concat([x, zeros], axis=-1), (*x.shape[:-2], rows * (rows + cols)))
    return xp.reshape(flat[..., : rows * (rows + cols - 1)], (*x.shape[:-2], rows, rows + cols - 1))
