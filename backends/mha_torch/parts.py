"""Cut a problem into parts whose masks are small: numbers that are added to their scores.

What is added to a score often depends on the distance of key and query alone: a band, ALiBi, a relative bias. Such a matrix has
equal numbers along each diagonal (it is a Toeplitz matrix), so it is a view of one number for each distance. The last key comes
first: torch has no negative strides, and softmax does not depend on the order of keys.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mha_core.plugin import AttentionProblem, Limits, Relation, bias_by_distance, pieces, places_of_block, visible_blocks

_MASK = 1 << 20  # elements in the mask of a tile: 4 MB in float32
_ROWS = 512  # queries in a tile
BAND = frozenset({"causal", "window"})
_BAND_ROWS = 256  # queries in a part of a band: more would compute more scores outside of it


@dataclass(frozen=True, eq=False)
class ScorePart:
    """Some queries and keys, as indices of the problem's arrays, and what is added to their scores."""

    rows: range
    cols: range
    mask: Tensor | None = None
    """(..., h, l, s), where each axis may be 1; with the last key first if ``is_turned``."""
    causal: bool = False
    """True if query i of the part sees the keys up to i only."""

    def slices(self, num_keys: int, *, turned: bool) -> tuple[slice, slice]:
        """Return the part's queries and keys; ``turned``: of keys in reverse order."""
        cols = range(num_keys - self.cols.stop, num_keys - self.cols.start) if turned else self.cols
        return slice(self.rows.start, self.rows.stop), slice(cols.start, cols.stop)


def is_turned(p: AttentionProblem) -> bool:
    """Return whether masks of parts begin with the last key: bias and band then are views."""
    if not isinstance(p.offset, int):
        return False
    if p.bias is None:
        return bool(p.structure.features) and p.structure.features <= BAND
    return p.bias.by_distance and p.bias.is_added


def along_distances(p: AttentionProblem, *, band: bool = True) -> Tensor:
    """Return what is added to scores, (h, S + L - 1), for key - query = S - 1, ..., 1 - L in the indices of the arrays.

    ``band``: -inf outside of the band.
    """
    keys, queries = p.structure.keys, p.query.shape[-2]
    added = torch.zeros((1, 1), dtype=p.compute_dtype, device=p.device)
    if p.bias is not None:
        values: Any = bias_by_distance(p)
        added = values.to(p.compute_dtype).reshape(-1, values.shape[-1])
    low, high = p.structure.band if band else (None, None)
    distance = torch.arange(len(keys) - 1, -queries, -1, device=p.device)
    if low is not None:
        added = torch.where(distance >= low, added, -math.inf)
    if high is not None:
        added = torch.where(distance <= high, added, -math.inf)
    return added.expand(-1, len(distance)).contiguous()


def parts(p: AttentionProblem, *, turned: bool, largest: int | None = None) -> Iterator[ScorePart]:
    """Yield parts that cover every pair that attends.

    ``turned``: whether masks begin with the last key, which ``is_turned`` must allow. ``largest``: how many queries, and how
    many keys, a part has at most.
    """
    if turned and p.structure.features <= BAND:
        return _parts_of_band(p, largest)
    return _tiles(p, turned, largest)


def _parts_of_band(p: AttentionProblem, largest: int | None) -> Iterator[ScorePart]:
    """Yield parts whose masks are views."""
    added = along_distances(p)
    band, queries, keys = p.structure.band, range(p.query.shape[-2]), range(len(p.structure.keys))
    size = largest or (len(queries) if band == Limits() else _BAND_ROWS)
    for rows in pieces(queries, size):
        for cols in pieces(band.keys_of(rows, keys), largest or len(keys)):
            inside = band.keys_of(rows, cols, every=True) == cols
            yield ScorePart(rows, cols, None if inside and p.bias is None else toeplitz(added, len(keys), rows, cols))


def toeplitz(by_distance: Tensor, num_keys: int, rows: range, cols: range) -> Tensor:
    """Return the matrix of a block, (h, l, s), from one number for each distance of the problem: a view, the last key first."""
    return by_distance[:, places_of_block(num_keys, rows, cols)].unfold(-1, len(cols), 1)


def _tiles(p: AttentionProblem, turned: bool, largest: int | None) -> Iterator[ScorePart]:
    """Yield tiles with masks of 4 MB at most, or as large as the rows or columns of all."""
    queries, keys = range(p.query.shape[-2]), p.structure.keys
    added = along_distances(p, band=False) if p.bias is not None and turned else None
    num_rows, num_cols = _tile(p)
    for rows in pieces(queries, min(num_rows, largest or num_rows)):
        for cols, relation in visible_blocks(p, rows, min(num_cols, largest or num_cols)):
            of_arrays = range(cols.start - keys.start, cols.stop - keys.start)
            if added is None:
                yield ScorePart(rows, of_arrays, mask_of(p, rows, cols))
                continue
            mask = toeplitz(added, len(keys), rows, of_arrays)
            if p.mask is not None and relation is Relation.SOME:
                allowed: Any = p.mask.block(p.grid(rows, cols))
                mask = torch.where(allowed.flip(-1), mask, -math.inf)
            yield ScorePart(rows, of_arrays, mask)


def _tile(p: AttentionProblem) -> tuple[int, int]:
    """Return how many queries and keys a tile has, from the shape of the mask and bias of two of each."""
    queries, keys = range(p.query.shape[-2]), p.structure.keys
    grid = p.grid(queries[:2], keys[:2])
    shapes = [tuple(term.block(grid).shape) for term in (p.mask, p.bias) if term is not None]
    *leading, rows, cols = torch.broadcast_shapes((1, 1), *shapes)  # type: ignore[no-untyped-call]
    if 1 in (rows, cols) and len(queries) > 1 and len(keys) > 1:
        return len(queries), len(keys)  # one number for all queries, or for all keys
    count = math.prod(leading)
    num_rows = min(len(queries), _ROWS)
    num_cols = min(len(keys), max(128, _MASK // max(1, count * num_rows)))
    return min(num_rows, max(64, _MASK // max(1, count * num_cols))), num_cols


def mask_of(p: AttentionProblem, rows: range, cols: range) -> Tensor | None:
    """Return what is added to the scores of a block: the bias, and -inf where masked. None if nothing is added."""
    grid = p.grid(rows, cols)
    allowed: Any = None
    if p.mask is not None and p.mask.relation(grid) is Relation.SOME:
        allowed = p.mask.block(grid)
    if allowed is None and p.bias is None:
        return None
    mask: Any = torch.zeros((), dtype=p.compute_dtype, device=p.device)
    if p.bias is not None:
        bias: Any = p.bias.block(grid)
        mask = bias.to(p.compute_dtype)
    return mask if allowed is None else torch.where(allowed, mask, -math.inf)
