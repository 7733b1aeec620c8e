"""Attention over keys and values that are spread over the ranks of a group."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Unpack

from ..algebra.arrays import Array
from ..algebra.attention_vjp import summed_over_rows
from ..algebra.state import AttentionState
from ..ops.differentiable import Arrays
from ..ops.options import Options, shows_options
from .agreement import GatheredErrors, with_gathered_errors
from .engine import Engine
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
    ring = _Ring(layout)
    return attention_over_ranks("ring_attention", group, (query, key, value), options, ring.attend, ring.gradients)


class _Ring:
    """A call of ``ring_attention``, and its gradients."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout

    def attend(self, arrays: Arrays, options: Mapping[str, Any], engine: Engine) -> AttentionState:
        self.problem = problem = Sequences(engine, arrays, self.layout, self.layout, options)
        errors, states = GatheredErrors(engine), dict[range, AttentionState]()
        for step, held in problem.ring_steps([problem.key, problem.value]):
            block = errors.call(problem.attend, *held, step) if held else None
            states = errors.call(problem.merged, states, block or {}) or {}
        state = errors.call(problem.finished, states)
        errors.gather()
        assert state is not None
        return state

    def gradients(self, state: AttentionState, d: AttentionState, engine: Engine) -> Arrays:
        """Return the gradients of this rank's arrays: those of keys and values travel with them, lse and d stay.

        A block is as in Dao 2023, algorithm 2.
        """
        self.problem.engine = engine
        problem, xp = self.problem, self.problem.backend.xp
        d = AttentionState(xp.zeros_like(state.out) if d.out is None else d.out, d.lse)
        errors, returns = GatheredErrors(engine), dict[int, list[Array]]()
        d_query, like = problem.zeros([problem.query]), problem.zeros([problem.key, problem.value])
        receive: Callable[[], list[Array]] = list  # nothing
        for step, held in problem.ring_steps([problem.key, problem.value]):
            block = errors.call(problem.gradients, *held, step, state, d) if held else None
            if block is None:
                sums = problem.zeros(held)  # sent if this rank failed: another one waits for arrays of this shape
            else:
                d_query, sums = _sums(d_query, block[:1]), block[1:]
            sums = _sums(sums, receive())
            if held and not problem.sends_at(step):
                returns[problem.source(step)], sums = sums, []
            receive = engine.shift(sums, problem.received_at(step, like))
        d_key, d_value = _returned(problem, returns, like)
        d_sink = None if problem.sink is None else errors.call(_sink_gradient, problem, state, d)
        errors.gather()
        gradients = [xp.astype(x, problem.query.dtype, copy=False) for x in (*d_query, d_key, d_value)]
        return dict(zip(("query", "key", "value", "sink"), (*gradients, d_sink), strict=True))


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

    def attend(arrays: Arrays, options: Mapping[str, Any], engine: Engine) -> AttentionState:
        problem = Sequences(engine, arrays, None, layout, options)
        state = with_gathered_errors(
            engine, lambda: problem.finished(problem.attend(problem.key, problem.value, 0), partial=True)
        )
        outs, lses = (engine.all_gather(x, [tuple(x.shape)] * engine.size) for x in state)
        (_, rows), *_ = problem.places(problem.queries)
        states: dict[range, AttentionState] = {}
        for each in map(AttentionState, outs, lses):
            states = problem.merged(states, {rows: each})
        return problem.finished(states)

    return attention_over_ranks("split_attention", group, (query, key, value), options, attend)
