"""Splitting of a problem into blocks of queries and keys, or slices of its batch, to bound memory (promise 13)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from .arrays import Array
from .grid import Relation
from .problem import AttentionProblem
from .state import AttentionState
from .tiles import pieces

_DENSE = 1 << 22  # scores computed together without blocks: 16 MB in float32
_BLOCK = 1 << 20  # scores in a block

BlockShape = tuple[int, int]
"""The number of queries and the number of keys in a block."""


def block_shape(p: AttentionProblem, num_rows: int) -> BlockShape:
    """Return the shape of a block: all scores if they are few, otherwise twice as many keys as queries."""
    heads = max(1, math.prod(p.rows_shape[:-1]))
    num_cols = len(p.structure.keys)
    if heads * num_rows * num_cols <= _DENSE:
        return max(1, num_rows), max(1, num_cols)
    rows = min(num_rows, max(64, math.isqrt(_BLOCK // heads // 2)))
    return rows, max(128, _BLOCK // heads // rows)


def visible_blocks(p: AttentionProblem, rows: range, num_cols: int) -> Iterator[tuple[range, Relation]]:
    """Yield blocks of ``num_cols`` keys that some of ``rows`` may see, each with how many of its pairs attend."""
    for cols in pieces(p.structure.keys, num_cols):
        relation = Relation.ALL if p.mask is None else p.mask.relation(p.grid(rows, cols))
        if relation is not Relation.NONE:
            yield cols, relation


def batch_slice_size(p: AttentionProblem) -> int | None:
    """Return how many elements of the first batch axis to compute together, for many small problems; None for all of them."""
    if not p.batch_shape or not isinstance(p.offset, int) or p.dropout is not None:
        return None
    if any(term.may_differ_in_batch for term in (p.mask, p.bias) if term is not None):
        return None
    each = math.prod(p.rows_shape[1:-1]) * min(p.query.shape[-2], 64) * min(len(p.structure.keys), 128)
    size = max(1, _DENSE // max(1, each))
    return size if size < p.batch_shape[0] else None


def by_batch_slices(p: AttentionProblem, size: int, attend: Callable[[AttentionProblem], AttentionState]) -> AttentionState:
    """Return the states of slices of ``size`` elements of the first batch axis, computed one after another, as one."""
    ndim = len(p.batch_shape) + 3

    def slice_of(x: Array, start: int) -> Array:
        return x if x.ndim < ndim or x.shape[0] == 1 else x[start : start + size, ...]

    states: list[AttentionState] = []
    for start in range(0, p.batch_shape[0], size):
        of_slice = p.with_arrays(*(slice_of(x, start) for x in (p.query, p.key, p.value)))
        states.append(attend(of_slice.after(*(state.out for state in states[-1:]))))
    return AttentionState(*(p.xp.concat(list(arrays), axis=0) for arrays in zip(*states, strict=True)))
