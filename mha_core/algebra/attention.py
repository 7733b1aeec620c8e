"""Attention in array-API calls: the states of blocks of keys, merged.

The scores of a query q against keys k_j (Vaswani et al. 2017, equation 1; docs/promises.md gives the order of the options):

    s_j = softcap(scale q k_j^T) + bias_j, -inf where masked        softcap(s) = c tanh(s / c)

The state of a block of keys with values v_j (Milakov and Gimelshein 2018, section 3):

    m = max_j s_j        d = sum_j e^(s_j - m)
    out = sum_j e^(s_j - m) v_j / d        lse = m + log d

States of disjoint blocks merge (``state.merge``), so memory is that of a block (Rabe and Staats 2021, section 2).

Query heads that share keys have a separate axis: H = K * G query heads read K key heads, as (..., K, G, L, S), so that no
key is repeated.
"""

from __future__ import annotations

import math

from .arrays import AnyIndex, Array, DynamicRange, Index, Namespace, bounds, pick, split_axis, without_gradient
from .blocks import BlockShape, batch_slice_size, block_shape, by_batch_slices, visible_blocks
from .grid import Relation
from .int8 import Int8Rows, Rows, map_rows
from .packed import by_sequence, goes_by_sequence
from .problem import AttentionProblem, check_lengths
from .state import AttentionState, concat_queries, merge
from .tiles import pieces


def attention_state(problem: AttentionProblem, *, rows: range | None = None, block: BlockShape | None = None) -> AttentionState:
    """Return attention over all keys; blocks in which no query sees a key are never computed.

    ``rows``: only these queries. ``block``: how many queries and keys are computed together; the result depends on it only
    through rounding.

    Raises ValueError if the library does not know how many queries or keys there are.
    """
    p = problem
    check_lengths(p, "attention in blocks")
    if rows is None and block is None:
        if goes_by_sequence(p):
            return by_sequence(p, attention_state)
        if (size := batch_slice_size(p)) is not None:
            return by_batch_slices(p, size, attention_state)
    rows = range(p.query.shape[-2]) if rows is None else rows
    num_rows, num_cols = block or block_shape(p, len(rows))
    states: list[AttentionState] = []
    for block_rows in pieces(rows, num_rows):
        states.append(_rows_state(p.after(*(state.out for state in states[-1:])), block_rows, num_cols))
    return concat_queries(p.xp, states or [_in_input_dtype(p, _no_keys(p, range(0)))])


def _rows_state(p: AttentionProblem, rows: range, num_cols: int) -> AttentionState:
    """Merge the states of blocks of keys, and finally the sink, which is one more key whose value is 0."""
    xp = p.xp
    state = None
    for cols, relation in visible_blocks(p, rows, num_cols):
        problem = p if state is None else p.after(state.out)
        block = block_state(problem, rows, cols, masked=relation is Relation.SOME)
        state = block if state is None else merge(xp, state, block)
    state = _no_keys(p, rows) if state is None else state
    if p.sink is not None:
        sink = xp.broadcast_to(upcast(p, p.sink)[:, None], state.lse.shape)
        state = merge(xp, state, AttentionState(xp.zeros_like(state.out), sink))
    return _in_input_dtype(p, state)


def block_state(p: AttentionProblem, rows: AnyIndex, cols: AnyIndex, *, masked: bool = True) -> AttentionState:
    """out = sum_j e^(s_j - m) v_j / d, lse = m + log d over the keys of one block, in the compute dtype.

    ``masked=False`` leaves the mask out; every pair must then be known to attend.
    """
    xp = p.xp
    s = scores(p, rows, cols, masked=masked)
    e, d, m, empty = exponentials(xp, s)
    v = upcast(p, map_rows(p.value, lambda x: pick(xp, x, kept(p, cols), -2)))[..., :, None, :, :]
    out = xp.where(empty, 0, xp.matmul(dropped(p, e, rows, cols), v) / d)
    lse = xp.where(empty, -math.inf, m + xp.log(d))
    # values may have more batch axes than the scores
    return AttentionState(ungrouped(p, out), xp.broadcast_to(ungrouped(p, lse)[..., 0], (*p.rows_shape[:-1], len(rows))))


def scores(p: AttentionProblem, rows: AnyIndex, cols: AnyIndex, *, masked: bool = True) -> Array:
    """softcap(scale q k^T) + bias, -inf where masked: (..., K, G, rows, cols) in the compute dtype.

    ``masked=False`` leaves the mask out; every pair must then be known to attend.
    """
    s = products(p, rows, cols)
    if p.bias is not None:
        s = grouped(p, p.bias.added(ungrouped(p, s), p.grid(rows, cols)))
    return hidden(p, s, rows, cols) if masked else s


def products(p: AttentionProblem, rows: AnyIndex, cols: AnyIndex) -> Array:
    """softcap(scale q k^T), (..., K, G, rows, cols) in the compute dtype."""
    xp = p.xp
    q = grouped(p, upcast(p, pick(xp, p.query, rows, -2)))
    k = upcast(p, map_rows(p.key, lambda x: pick(xp, x, kept(p, cols), -2)))[..., :, None, :, :]
    s = xp.matmul(q * p.scale, xp.matrix_transpose(k))
    return s if p.softcap is None else p.softcap * xp.tanh(s / p.softcap)


def hidden(p: AttentionProblem, s: Array, rows: AnyIndex, cols: AnyIndex) -> Array:
    """Return scores with -inf where masked."""
    return s if p.mask is None else p.xp.where(grouped(p, p.mask.block(p.grid(rows, cols))), s, -math.inf)


def dropped(p: AttentionProblem, x: Array, rows: AnyIndex, cols: AnyIndex) -> Array:
    """Return a block of weights, or of their gradients, after dropout: 0, or divided by 1 - rate."""
    if p.dropout is None:
        return x
    keep = grouped(p, p.dropout.kept(p.grid(rows, cols), p.rows_shape))
    return p.xp.where(keep, x / (1 - p.dropout.rate), 0)


def exponentials(xp: Namespace, s: Array, sink: Array | None = None) -> tuple[Array, Array, Array, Array]:
    """Return e^(s - m), d, m and which rows are empty: m the maximum of a row, so that nothing overflows, d the sum.

    A sink counts in m and d. An empty row, all -inf, has m = 0 and d = 1. What is made of them does not depend on m, so m is
    constant to a library's own gradients. They would divide that of a maximum by the number of elements that equal it, which
    is 0 if a compiler computes the scores twice, rounded otherwise.
    """
    m = xp.max(s, axis=-1, keepdims=True)
    m = without_gradient(xp, m if sink is None else xp.maximum(m, sink))
    empty = m == -math.inf
    m = xp.where(empty, 0, m)
    e = xp.exp(s - m)
    d = xp.sum(e, axis=-1, keepdims=True)
    d = d if sink is None else d + xp.exp(sink - m)
    return e, xp.where(empty, 1, d), m, empty


def attention_weights(problem: AttentionProblem, lse: Array | None, rows: Index, cols: Index, num_keys: int) -> Array:
    """Return e^(s - lse) for ``rows`` and ``cols`` in the query's dtype; exactly 0 where masked and in rows that see nothing.

    Without ``lse`` and with all columns it is e^(s - m) / d, which avoids the rounding of a large lse.
    """
    p, xp = problem, problem.xp
    shape = (*p.rows_shape[:-1], len(rows), len(cols))
    if not len(cols) or not len(rows):
        return xp.zeros(shape, dtype=p.query.dtype, device=p.device)
    if not len(p.structure.keys):
        zeros = ungrouped(p, xp.sum(_no_scores(p, rows), axis=-1, keepdims=True))
        return xp.zeros(shape, dtype=p.query.dtype, device=p.device) + xp.astype(zeros, p.query.dtype, copy=False)
    s, places = scores(p, rows, cols), rows
    if lse is None and cols == range(num_keys):
        e, d, _, _ = exponentials(xp, s, grouped_sink(p))
        weights = e / d
    else:
        if lse is None:
            low, high = bounds(rows)
            lse, places = attention_state(p, rows=range(low, high + 1)).lse, tuple(row - low for row in rows)
        lse = grouped(p, pick(xp, lse[..., None], places, -2))
        empty = lse == -math.inf
        weights = xp.exp(xp.where(empty, -math.inf, s - xp.where(empty, 0, lse)))
    return xp.astype(ungrouped(p, dropped(p, weights, rows, cols)), p.query.dtype, copy=False)


# dtypes and axes


def upcast(p: AttentionProblem, x: Rows) -> Array:
    """Return an array, or int8 rows, in the compute dtype."""
    if isinstance(x, Int8Rows):
        return x.widened(p.xp, p.compute_dtype)
    return p.xp.astype(x, p.compute_dtype, copy=False)


def grouped(p: AttentionProblem, x: Array) -> Array:
    """(..., H, l, s) -> (..., K, G, l, s); a head axis of length 1 still broadcasts."""
    if x.ndim < 3:
        return x
    if x.shape[-3] == 1 and p.query.shape[-3] != 1:
        return x[..., None, :, :]
    return split_axis(p.xp, x, -3, (x.shape[-3] // p.num_groups, p.num_groups))


def ungrouped(p: AttentionProblem, x: Array) -> Array:
    """(..., K, G, l, s) -> (..., H, l, s)."""
    return p.xp.reshape(x, (*x.shape[:-4], x.shape[-4] * x.shape[-3], *x.shape[-2:]))


def grouped_sink(p: AttentionProblem) -> Array | None:
    """Return the sink as (K, G, 1, 1), which broadcasts to scores, in the compute dtype."""
    return None if p.sink is None else grouped(p, upcast(p, p.sink)[:, None, None])


def kept(p: AttentionProblem, cols: AnyIndex) -> AnyIndex:
    """Return key indices of the caller as indices of the remaining keys.

    A dropped key, whose weight is 0, gets the index of the nearest remaining key.
    """
    keys = p.structure.keys
    if isinstance(cols, DynamicRange):
        return cols.shifted(-keys.start)
    if isinstance(cols, range) and cols.step == 1 and keys.start <= cols.start and cols.stop <= keys.stop:
        return range(cols.start - keys.start, cols.stop - keys.start)
    return tuple(min(max(col, keys.start), keys.stop - 1) - keys.start for col in cols)


def _no_keys(p: AttentionProblem, rows: range) -> AttentionState:
    """Return the state over no keys, in the compute dtype: sums of nothing, whose gradients are 0 if gradients are recorded."""
    xp, s = p.xp, _no_scores(p, rows)
    v = upcast(p, p.value[..., :0, :])[..., :, None, :, :]
    lse = ungrouped(p, xp.sum(s, axis=-1, keepdims=True))[..., 0] - math.inf
    zeros = xp.zeros((*p.rows_shape[:-1], len(rows)), dtype=lse.dtype, device=p.device)
    return AttentionState(ungrouped(p, xp.matmul(s, v)), zeros + lse)


def _no_scores(p: AttentionProblem, rows: Index) -> Array:
    """Return scores of queries with no keys, (..., K, G, rows, 0)."""
    q = grouped(p, upcast(p, pick(p.xp, p.query, rows, -2)))
    return p.xp.matmul(q, p.xp.matrix_transpose(upcast(p, p.key[..., :0, :])[..., :, None, :, :]))


def _in_input_dtype(p: AttentionProblem, state: AttentionState) -> AttentionState:
    return AttentionState(p.xp.astype(state.out, p.query.dtype, copy=False), state.lse)
