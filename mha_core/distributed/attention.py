"""Attention over keys and values that are spread over the ranks of a group."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Unpack

from ..algebra.arrays import Array
from ..algebra.attention_vjp import summed_over_rows
from ..algebra.state import AttentionState
from ..ops.differentiable import Arrays
from ..ops.options import Options, shows_options
from .agreement import GatheredErrors
from .layout import Layout
from .rehearsal import attention_over_ranks
from .sequences import Sequences


@shows_options
def ring_attention(
    query: Array, key: Array, value: Array, *, group: Any, layout: Layout = "contiguous", **options: Unpack[Options]
) -> AttentionState:
    """Attention of this rank's queries over the keys and values of all ranks, which travel from rank to rank.

    Source: Liu, Zaharia and Abbeel 2023. The next keys and values are on their way while those that are here are computed.
    What a mask hides from this rank is not computed, and what it hides from all ranks that are left is not sent.

    Parameters
    ----------
    query : array (..., H, l, D)
        This rank's part of the queries, in the order of its ranges of positions; ``shard`` returns it.
    key, value : arrays (..., K, s, D) and (..., K, s, E)
        This rank's part, likewise.
    group : a group of an installed engine, such as a process group of torch.distributed, or an Engine
        The ranks. All of them make this call, with the same layout and options.
    layout : as ``layout_of``
        Which positions each rank holds, of the queries and of the keys.
    options : as ``scaled_dot_product_attention``
        In the positions of the whole problem; a sink is not sharded either.

    Returns
    -------
    AttentionState
        ``out`` (..., H, l, E) and ``lse`` (..., H, l), of this rank's queries. Both have gradients of query, key and value, as
        those of the sum of all ranks' results; that of a sink is this rank's share of it.

    Raises
    ------
    RanksDiffer
        On all ranks, where shapes, dtypes, options or layouts differ; the message names the ranks.
    RankFailed
        If another rank raised an error. On that rank, its own error is raised.
    TypeError
        If gradients of a bias are recorded, which have no rule here.
    """
    return attention_over_ranks("ring_attention", group, (layout, layout), (query, key, value), options, _ring, _ring_gradients)


def _ring(problem: Sequences, errors: GatheredErrors) -> AttentionState | None:
    errors.call_again(lambda: problem.reach)
    states = dict[range, AttentionState]()
    for step, held in problem.ring_steps([problem.key, problem.value]):
        block = errors.call(problem.attend, *held, step) if held else None
        states = errors.call(problem.merged, states, block or {}) or {}
    return errors.call(problem.finished, states)


def _ring_gradients(problem: Sequences, errors: GatheredErrors, state: AttentionState, d: AttentionState) -> Arrays | None:
    """Return the gradients of this rank's arrays: those of keys and values travel with them, lse and d stay.

    A block is as in Dao 2023, algorithm 2.
    """
    xp, engine = problem.backend.xp, problem.engine
    d_query, like = (errors.call_again(problem.zeros, x) for x in ([problem.query], [problem.key, problem.value]))
    d = AttentionState(errors.call(xp.zeros_like, state.out) if d.out is None else d.out, d.lse)
    returns = dict[int, list[Array]]()
    receive: Callable[[], list[Array]] = list  # nothing
    for step, held in problem.ring_steps([problem.key, problem.value]):
        block = errors.call(problem.gradients, *held, step, state, d) if held else []
        received = receive()
        added = errors.call(lambda x, y, z: (_sums(x, y[:1]), _sums(y[1:], z)), d_query, block, received)
        # a rank that failed still sends: another one waits for arrays of this shape
        d_query, sums = (d_query, problem.zeros(held)) if added is None else added
        if held and not problem.sends_at(step):
            returns[problem.source(step)], sums = sums, []
        receive = engine.shift(sums, problem.received_at(step, like))
    d_key, d_value = _returned(problem, returns, like)

    def finished() -> Arrays:
        d_sink = None if problem.sink is None else _sink_gradient(problem, state, d)
        gradients = [xp.astype(x, problem.query.dtype, copy=False) for x in (*d_query, d_key, d_value)]
        return dict(zip(("query", "key", "value", "sink"), (*gradients, d_sink), strict=True))

    return errors.call(finished)


def _sums(a: list[Array], b: list[Array]) -> list[Array]:
    """Return the sums of two lists of arrays, the second of which may be empty."""
    return [x + y for x, y in zip(a, b, strict=True)] if b else a


def _returned(problem: Sequences, returns: dict[int, list[Array]], like: list[Array]) -> list[Array]:
    """Return the sums for this rank's keys and values from the rank where they ended; send those of others to them."""
    rank, size = problem.engine.rank, problem.engine.size
    assert rank is not None
    last = (rank + problem.reach[rank]) % size
    received = []
    for i, zeros in enumerate(like):
        nothing = zeros[..., :0, :]
        sent = [returns[to][i] if to in returns else nothing for to in range(size)]
        shapes = [tuple((zeros if source == last else nothing).shape) for source in range(size)]
        received.append(problem.engine.all_to_all(sent, shapes)[last])
    return received


def _sink_gradient(problem: Sequences, state: AttentionState, d: AttentionState) -> Array:
    """Return this rank's share of the gradient of a sink: that of its own queries, with delta = d_out . out - d_lse."""
    xp, wide, sink = problem.backend.xp, problem.wide, problem.sink
    assert sink is not None
    nothing = state.lse == -math.inf  # a query that sees no key, and a sink of -inf
    delta = xp.sum(xp.astype(d.out, wide) * xp.astype(state.out, wide), axis=-1)
    delta = xp.where(nothing, 0, delta if d.lse is None else delta - d.lse)
    return summed_over_rows(xp, sink, xp.where(nothing, 0, state.lse), delta)


@shows_options
def split_attention(
    query: Array, key: Array, value: Array, *, group: Any, layout: Layout = "contiguous", **options: Unpack[Options]
) -> AttentionState:
    """Attention of queries that all ranks know over keys and values that are split over them, as in decoding.

    Each rank attends to its own keys, and the states are merged, in the order of the ranks: all return the same bits.

    Parameters, errors: as ``ring_attention``; ``query`` (..., H, L, D) is the same array on all ranks. Gradients, if recorded,
    raise TypeError.

    Returns
    -------
    AttentionState
        ``out`` (..., H, L, E) and ``lse`` (..., H, L), the same on all ranks.
    """

    def attend(problem: Sequences, errors: GatheredErrors) -> AttentionState | None:
        own = errors.call(lambda: problem.finished(problem.attend(problem.key, problem.value, 0), partial=True))
        own = problem.finished({}, partial=True) if own is None else own  # a rank that failed sends the state of no keys
        outs, lses = (problem.engine.all_gather(x, [tuple(x.shape)] * problem.engine.size) for x in own)

        def merged() -> AttentionState:
            (_, rows), *_ = problem.places(problem.queries)
            states: dict[range, AttentionState] = {}
            for each in map(AttentionState, outs, lses):
                states = problem.merged(states, {rows: each})
            return problem.finished(states)

        return errors.call(merged)

    return attention_over_ranks("split_attention", group, (None, layout), (query, key, value), options, attend)
