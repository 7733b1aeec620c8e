"""Attention, in array-API calls (Vaswani et al. 2017, equation 1; order of work as promised in docs/design.md).

    s = softcap(scale q k^T) + bias, -inf where masked      softcap(s) = c tanh(s / c)
    lse = log sum_j e^s_j        out = sum_j e^(s_j - lse) v_j

Heads that share keys stand as (K, G): H = K * G query heads read K key heads, so no key is repeated.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import reduce

from .arrays import Array, Index, Namespace, bounds, move_axis, pick, split_axis
from .masks import Band, Relation, runs
from .problem import AttentionProblem
from .state import AttentionState, identity, merge
from .structure import Structure

_DENSE = 1 << 22  # scores computed at once without blocks: 16 MB in float32
_BLOCK = 1 << 20  # scores in a block

Block = tuple[int, int]


def attention_state(problem: AttentionProblem, *, rows: range | None = None, block: Block | None = None) -> AttentionState:
    """Attention over all keys: states of blocks of keys, merged; blocks that see nothing are never computed.

    ``rows``: only these queries. ``block``: how many queries and keys at a time; the result does not depend on it
    beyond rounding.
    """
    p = problem
    if rows is None and block is None:
        if goes_by_sequence(p):
            return by_sequence(p, attention_state)
        if (size := _elements_at_once(p)) is not None:
            return _batch_state(p, size)
    rows = range(p.query.shape[-2]) if rows is None else rows
    num_rows, num_cols = block or _block_shape(p, len(rows))
    parts = [_rows_state(p, part, num_cols) for part in split(rows, num_rows)]
    return concat_queries(p.xp, parts or [_as_asked(p, _nothing_seen(p, 0))])


def attention_weights(problem: AttentionProblem, lse: Array | None, rows: Index, cols: Index, num_keys: int) -> Array:
    """e^(s - lse) for ``rows`` and ``cols``, in the query's dtype: exactly 0 where masked and in a row that sees nothing.

    Without ``lse`` and with all columns it is e^(s - max) / sum: the rounding of a large lse stays out.
    """
    p, xp = problem, problem.xp
    if not len(p.structure.keys) or not len(cols) or not len(rows):
        shape = (*p.rows_shape[:-1], len(rows), len(cols))
        return xp.zeros(shape, dtype=p.query.dtype, device=p.device)
    s = scores(p, rows, cols)
    if lse is None and cols == range(num_keys):
        sink = None if p.sink is None else grouped(p, wide(p, p.sink)[:, None, None])
        weights, total, _, _ = exponentials(xp, s, sink)
        weights = weights / total
    else:
        if lse is None:
            low, high = bounds(rows)
            lse, rows = attention_state(p, rows=range(low, high + 1)).lse, tuple(row - low for row in rows)
        lse = grouped(p, pick(xp, lse[..., None], rows, -2))
        empty = lse == -math.inf
        weights = xp.exp(xp.where(empty, -math.inf, s - xp.where(empty, 0, lse)))
    return xp.astype(ungrouped(p, weights), p.query.dtype, copy=False)


def _rows_state(p: AttentionProblem, rows: range, num_cols: int) -> AttentionState:
    xp = p.xp
    state = _nothing_seen(p, len(rows))
    blocks = (_block_state(p, rows, cols, relation) for cols, relation in _visible_blocks(p, rows, num_cols))
    first = next(blocks, None)
    if first is not None:
        state = reduce(lambda a, b: merge(xp, a, b), blocks, first)
    if p.sink is not None:
        sink = xp.broadcast_to(xp.astype(p.sink, p.compute_dtype, copy=False)[:, None], state.lse.shape)
        state = merge(xp, state, AttentionState(xp.zeros_like(state.out), sink))
    return _as_asked(p, state)


def _visible_blocks(p: AttentionProblem, rows: range, num_cols: int) -> Iterator[tuple[range, Relation]]:
    for cols in split(p.structure.keys, num_cols):
        relation = Relation.ALL if p.mask is None else p.mask.relation(p.grid(rows, cols))
        if relation is not Relation.NONE:
            yield cols, relation


def _block_state(p: AttentionProblem, rows: range, cols: range, relation: Relation) -> AttentionState:
    """The state of one block, in the compute dtype."""
    xp = p.xp
    s = scores(p, rows, cols, masked=relation is Relation.SOME)
    weights, total, shift, empty = exponentials(xp, s)
    value = wide(p, pick(xp, p.value, _local(p, cols), -2))
    out = xp.where(empty, 0, xp.matmul(weights, value[..., :, None, :, :]) / total)
    lse = xp.where(empty, -math.inf, shift + xp.log(total))
    # values may have more batch axes than the scores
    return AttentionState(ungrouped(p, out), xp.broadcast_to(ungrouped(p, lse)[..., 0], (*p.rows_shape[:-1], len(rows))))


def exponentials(xp: Namespace, s: Array, sink: Array | None = None) -> tuple[Array, Array, Array, Array]:
    """e^(s - shift), their sum along keys with the sink's, the shift, and which rows are empty; their sum stands as 1.

    The shift is the maximum, so nothing overflows.
    """
    top = xp.max(s, axis=-1, keepdims=True)
    top = top if sink is None else xp.maximum(top, sink)
    empty = top == -math.inf
    shift = xp.where(empty, 0, top)
    weights = xp.exp(s - shift)
    total = xp.sum(weights, axis=-1, keepdims=True)
    total = total if sink is None else total + xp.exp(sink - shift)
    return weights, xp.where(empty, 1, total), shift, empty


def _nothing_seen(p: AttentionProblem, num_rows: int) -> AttentionState:
    shape = (*p.rows_shape[:-1], num_rows)
    return identity(p.xp, shape, p.value.shape[-1], dtype=p.compute_dtype, device=p.device)


def scores(p: AttentionProblem, rows: Index, cols: Index, *, masked: bool = True) -> Array:
    """(..., K, G, rows, cols) in the compute dtype; ``masked=False`` where every pair is known to attend."""
    xp = p.xp
    query = grouped(p, wide(p, pick(xp, p.query, rows, -2))) * p.scale
    key = wide(p, pick(xp, p.key, _local(p, cols), -2))[..., :, None, :, :]
    s = xp.matmul(query, xp.matrix_transpose(key))
    if p.softcap is not None:
        s = p.softcap * xp.tanh(s / p.softcap)
    grid = p.grid(rows, cols)
    if p.bias is not None:
        s = s + xp.astype(grouped(p, p.bias.block(grid)), s.dtype, copy=False)
    if masked and p.mask is not None:
        s = xp.where(grouped(p, p.mask.block(grid)), s, -math.inf)
    return s


def _local(p: AttentionProblem, cols: Index) -> Index:
    """The caller's key indices, in the keys that remain; a dropped key, whose weight is 0, borrows a neighbour's place."""
    keys = p.structure.keys
    if isinstance(cols, range) and cols.step == 1 and keys.start <= cols.start and cols.stop <= keys.stop:
        return range(cols.start - keys.start, cols.stop - keys.start)
    return tuple(min(max(col, keys.start), keys.stop - 1) - keys.start for col in cols)


def wide(p: AttentionProblem, x: Array) -> Array:
    return p.xp.astype(x, p.compute_dtype, copy=False)


def grouped(p: AttentionProblem, x: Array) -> Array:
    """(..., H, l, s) -> (..., K, G, l, s); an axis that broadcasts goes on broadcasting."""
    if x.ndim < 3:
        return x
    if x.shape[-3] == 1 and p.query.shape[-3] != 1:
        return x[..., None, :, :]
    return split_axis(p.xp, x, -3, (x.shape[-3] // p.num_groups, p.num_groups))


def ungrouped(p: AttentionProblem, x: Array) -> Array:
    """(..., K, G, l, s) -> (..., H, l, s)."""
    return p.xp.reshape(x, (*x.shape[:-4], x.shape[-4] * x.shape[-3], *x.shape[-2:]))


def _as_asked(p: AttentionProblem, state: AttentionState) -> AttentionState:
    return AttentionState(p.xp.astype(state.out, p.query.dtype, copy=False), state.lse)


def split(index: range, size: int) -> Iterator[range]:
    return (index[at : at + size] for at in range(0, len(index), size))


def _block_shape(p: AttentionProblem, num_rows: int) -> Block:
    """Everything at once where the scores are few; else blocks with twice as many keys as queries."""
    heads = max(1, math.prod(p.rows_shape[:-1]))
    num_cols = len(p.structure.keys)
    if heads * num_rows * num_cols <= _DENSE:
        return max(1, num_rows), max(1, num_cols)
    rows = min(num_rows, max(64, math.isqrt(_BLOCK // heads // 2)))
    return rows, max(128, _BLOCK // heads // rows)


def _elements_at_once(p: AttentionProblem) -> int | None:
    """How many elements of the first batch axis make a block where many problems are small; None where all at once will do."""
    if not p.batch_shape or not isinstance(p.offset, int):
        return None
    if any(True for term in (p.mask, p.bias) if term is not None for _ in term.arrays()):
        return None  # arrays may have batch axes of their own
    each = math.prod(p.rows_shape[1:-1]) * min(p.query.shape[-2], 64) * min(len(p.structure.keys), 128)
    size = max(1, _DENSE // max(1, each))
    return size if size < p.batch_shape[0] else None


def _batch_state(p: AttentionProblem, size: int) -> AttentionState:
    """Slices of the first batch axis, one after another."""
    ndim = len(p.batch_shape) + 3

    def part(x: Array, start: int) -> Array:
        return x if x.ndim < ndim or x.shape[0] == 1 else x[start : start + size, ...]

    parts = [
        attention_state(p.with_arrays(*(part(x, start) for x in (p.query, p.key, p.value))))
        for start in range(0, p.batch_shape[0], size)
    ]
    return AttentionState(*(p.xp.concat(list(arrays), axis=0) for arrays in zip(*parts, strict=True)))


def goes_by_sequence(p: AttentionProblem) -> bool:
    """Sequences laid end to end are independent problems where all else looks at distances only."""
    s = p.structure
    plain = s.key_lengths is None and s.array is None and s.rest is None
    if s.packed is None or not plain or not isinstance(p.offset, int):
        return False
    return p.bias is None or (p.bias.by_distance and p.offset == 0)  # the offset is in the band already, but in no bias


def only_packed(p: AttentionProblem) -> bool:
    """As ``goes_by_sequence``, and without a bias: for kernels that know of none there."""
    return p.bias is None and goes_by_sequence(p)


def by_sequence(p: AttentionProblem, attend: Callable[[AttentionProblem], AttentionState]) -> AttentionState:
    """A problem for each run of sequences of one length, the sequences its batch: no work on pairs apart.

    Where ``attend`` gives no lse, there is none.
    """
    xp = p.xp
    low, high = p.structure.band

    def stack(x: Array, start: int, count: int, length: int) -> Array:
        # (..., H, L, D) -> (..., count, H, length, D), a view
        part = x[..., start : start + count * length, :]
        return move_axis(xp, split_axis(xp, part, -2, (count, length)), -3, -4)

    states = []
    for run in runs(p.structure.packed or ()):
        _, count, length = run
        if not count * length:
            continue
        structure = Structure(keys=range(length), band=(low, high))
        band = None if (low, high) == (None, None) else Band(low, high)
        arrays = (stack(x, *run) for x in (p.query, p.key, p.value))
        out, lse = attend(p.with_arrays(*arrays, structure=structure, mask=band, offset=0))
        out = xp.reshape(move_axis(xp, out, -4, -3), (*out.shape[:-4], out.shape[-3], count * length, out.shape[-1]))
        if lse is not None:
            lse = xp.reshape(move_axis(xp, lse, -3, -2), (*lse.shape[:-3], lse.shape[-2], count * length))
        states.append(AttentionState(out, lse))
    return concat_queries(xp, states)


def concat_queries(xp: Namespace, states: Sequence[AttentionState]) -> AttentionState:
    """States of successive queries as one; without lse where they have none."""
    if len(states) == 1:
        return states[0]
    out = xp.concat([state.out for state in states], axis=-2)
    return AttentionState(out, states[0].lse if states[0].lse is None else xp.concat([s.lse for s in states], axis=-1))
