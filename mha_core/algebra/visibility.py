"""Which keys any query may see. The others must leave no trace, whatever they hold (promise 7)."""

from __future__ import annotations

import math

from .arrays import Array, at_least, broadcast_shapes
from .grid import over_heads
from .masks import Relation
from .problem import AttentionProblem

_BLOCK = 1 << 20  # pairs looked at together


def without_unseen_keys(problem: AttentionProblem) -> AttentionProblem:
    """The same problem, its unseen keys and values zeroed by selection; nothing is copied where all are known to be seen."""
    p, xp = problem, problem.xp
    seen = _seen(p)
    if seen is None:
        return p

    def zeroed(x: Array) -> Array:
        return xp.where(_for_keys(p, seen, x.shape[:-1])[..., None], x, 0)

    return p.with_arrays(p.query, zeroed(p.key), zeroed(p.value))


def has_unseen_keys(problem: AttentionProblem) -> bool:
    """Whether some keys are not known to be seen, and are zeroed in each call."""
    return _seen(problem) is not None


def _seen(p: AttentionProblem) -> Array | None:
    """Booleans against (..., H, 1, S) of the keys that remain; None where every key is known to be seen."""
    s, xp = p.structure, p.xp
    if not len(s.keys) or not p.query.shape[-2]:
        return None
    low, high = s.band
    diagonal = (low is None or low <= 0) and (high is None or high >= 0)
    if s.rest is None and s.array is None and (s.packed is None or diagonal):
        # a band that was cut to the keys it reaches misses none of them, nor does a diagonal in any sequence
        if s.key_lengths is None:
            return None
        keys = xp.arange(len(s.keys), device=p.device)[None, :]
        return keys < over_heads(s.key_lengths)
    parts = [_seen_block(p, cols) for cols in _column_blocks(p)]
    if all(part is None for part in parts):
        return None
    shape = broadcast_shapes(*(part.shape[:-1] for part in parts if part is not None))
    whole = [
        xp.ones((*shape, len(cols)), dtype=xp.bool, device=p.device)
        if part is None
        else xp.broadcast_to(part, (*shape, len(cols)))
        for part, cols in zip(parts, _column_blocks(p), strict=True)
    ]
    return xp.concat(whole, axis=-1)


def _seen_block(p: AttentionProblem, cols: range) -> Array | None:
    """Over all queries, for a block of keys: None where some block of queries is known to see all of them."""
    assert p.mask is not None
    xp = p.xp
    grids = [p.grid(rows, cols) for rows in _row_blocks(p)]
    relations = [p.mask.relation(grid) for grid in grids]
    if Relation.ALL in relations:
        return None
    seen = xp.zeros((1, 1, len(cols)), dtype=xp.bool, device=p.device)
    for grid, relation in zip(grids, relations, strict=True):
        if relation is Relation.SOME:
            seen = seen | xp.any(at_least(xp, p.mask.block(grid), 3), axis=-2, keepdims=True)
    return seen


def _for_keys(p: AttentionProblem, seen: Array, shape: tuple[int, ...]) -> Array:
    """(..., H, 1, S) -> what broadcasts to ``shape`` (..., K, S): seen by any head or batch element that shares the key."""
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


def _row_blocks(p: AttentionProblem) -> list[range]:
    rows = range(p.query.shape[-2])
    return [rows[at : at + 512] for at in range(0, len(rows), 512)]


def _column_blocks(p: AttentionProblem) -> list[range]:
    heads = max(1, math.prod(p.rows_shape[:-1]))
    size = max(64, _BLOCK // 512 // heads)
    return [p.structure.keys[at : at + size] for at in range(0, len(p.structure.keys), size)]
