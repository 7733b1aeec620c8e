"""Zeroing of keys that no query may see, so that their contents do not affect the result (promise 7)."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from .arrays import Array, at_least, broadcast_shapes
from .functions import MappedMask
from .grid import Relation, over_heads
from .int8 import Rows, map_rows
from .problem import AttentionProblem
from .structure import EVERY_KEY
from .tiles import pieces

_BLOCK = 1 << 20  # pairs evaluated together
_ROWS = 512  # queries in a block


def without_unseen_keys(problem: AttentionProblem) -> AttentionProblem:
    """Return the problem with unseen keys and their values zeroed by selection; unchanged if all are known to be seen."""
    p, xp = problem, problem.xp
    seen = seen_keys(p)
    if seen is None:
        return p

    def zeroed(x: Rows) -> Any:
        is_seen = _for_keys(p, seen, x.shape[:-1])[..., None]
        return map_rows(x, lambda y: xp.where(is_seen, y, 0))

    return p.with_arrays(p.query, zeroed(p.key), zeroed(p.value))


def seen_keys(p: AttentionProblem) -> Array | None:
    """Return which of the remaining keys are seen, broadcasting to (..., H, 1, S); None if all are known to be seen."""
    s, xp = p.structure, p.xp
    if s.keys is EVERY_KEY or s.sees_every_key or not len(s.keys) or not p.query.shape[-2]:
        return None
    if isinstance(p.mask, MappedMask) and p.mask.sees_every_key and p.mask.codes_at(p.offset) is not None:
        return None
    if s.key_lengths is not None and s.lengths_alone_hide:
        keys = xp.arange(len(s.keys), device=p.device)[None, :]
        return keys < over_heads(s.key_lengths)
    num_rows, num_cols = _block_shape(p)
    row_blocks = pieces(range(p.query.shape[-2]), num_rows)
    blocks = [(cols, _attending(p, ((rows, cols) for rows in row_blocks), -2)) for cols in pieces(s.keys, num_cols)]
    if all(seen is None for _, seen in blocks):
        return None
    shape = broadcast_shapes(*(seen.shape[:-1] for _, seen in blocks if seen is not None))
    whole = [
        xp.ones((*shape, len(cols)), dtype=xp.bool, device=p.device)
        if seen is None
        else xp.broadcast_to(seen, (*shape, len(cols)))
        for cols, seen in blocks
    ]
    return xp.concat(whole, axis=-1)


def _attending(p: AttentionProblem, blocks: Iterable[tuple[range, range]], axis: int) -> Array | None:
    """Return whether any pair along an axis of the scores attends; None if all pairs of one of the blocks are known to."""
    assert p.mask is not None
    grids = [p.grid(rows, cols) for rows, cols in blocks]
    relations = [p.mask.relation(grid) for grid in grids]
    if Relation.ALL in relations:
        return None
    shape = [1, len(grids[0].rows), len(grids[0].cols)]
    shape[axis] = 1
    seen = p.xp.zeros(tuple(shape), dtype=p.xp.bool, device=p.device)
    for grid, relation in zip(grids, relations, strict=True):
        if relation is Relation.SOME:
            seen = seen | _any(p, p.mask.block(grid), axis, seen)
    return seen


def _any(p: AttentionProblem, block: Array, axis: int, seen: Array) -> Array:
    """Return whether any pair of a block along an axis attends, where ``seen`` is still False; the axis stays, as 1."""
    xp = p.xp
    if p.device is None:
        # a compiler that sees all blocks keeps them at once, unless each needs the result of the one before it
        return xp.any(at_least(xp, block, 3) & ~seen, axis=axis, keepdims=True)
    # some libraries copy a block to which an axis is added
    return at_least(xp, xp.any(at_least(xp, block, 2), axis=axis, keepdims=True), 3)


def seeing(p: AttentionProblem) -> Array | None:
    """Return which queries see a key, broadcasting to (..., H, L); None if all are known to see one."""
    xp, keys, num_rows = p.xp, p.structure.keys, p.query.shape[-2]
    if not len(keys):
        return xp.zeros((1, num_rows), dtype=xp.bool, device=p.device)
    if p.mask is None or not num_rows:
        return None
    blocks = [_seeing_rows(p, rows) for rows in pieces(range(num_rows), _block_shape(p)[0])]
    shape = broadcast_shapes(*(seen.shape[:-1] for seen in blocks))
    return xp.concat([xp.broadcast_to(seen, (*shape, seen.shape[-1])) for seen in blocks], axis=-1)


def _seeing_rows(p: AttentionProblem, rows: range) -> Array:
    """Return which queries of a block see a key, (..., H, len(rows))."""
    seen = _attending(p, ((rows, cols) for cols in pieces(p.structure.keys, _block_shape(p)[1])), -1)
    return p.xp.ones((1, len(rows)), dtype=p.xp.bool, device=p.device) if seen is None else seen[..., 0]


def _for_keys(p: AttentionProblem, seen: Array, shape: tuple[int, ...]) -> Array:
    """(..., H, 1, S) -> booleans that broadcast to ``shape`` (..., K, S): seen by any head or batch element with that key."""
    xp = p.xp
    seen = seen[..., 0, :]
    if seen.shape[-2] > 1 and p.num_groups > 1:
        keys = seen.shape[-2] // p.num_groups
        seen = xp.any(xp.reshape(seen, (*seen.shape[:-2], keys, p.num_groups, seen.shape[-1])), axis=-2)
    for axis in range(seen.ndim):
        from_end = seen.ndim - axis
        if seen.shape[axis] != 1 and (from_end > len(shape) or shape[-from_end] == 1) and from_end > 1:
            seen = xp.any(seen, axis=axis, keepdims=True)
    return xp.reshape(seen, seen.shape[max(0, seen.ndim - len(shape)) :])


def _block_shape(p: AttentionProblem) -> tuple[int, int]:
    """Return how many queries and keys are evaluated together: all of an array, which takes no memory, else few."""
    queries, keys = p.query.shape[-2], len(p.structure.keys)
    if p.mask is not None and p.mask.is_stored:
        return queries, keys
    heads = max(1, math.prod(p.rows_shape[:-1]))
    if heads * _ROWS * keys > _BLOCK:  # worth a look at how many heads and batch elements the mask tells apart
        heads = max(1, math.prod(p.mask.block(p.grid(range(1), p.structure.keys[:1])).shape[:-2])) if p.mask is not None else 1
    return _ROWS, max(64, _BLOCK // _ROWS // heads)
