"""Attention over keys and values that are spread over the ranks of a group."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Unpack

from ..algebra.arrays import Array
from ..algebra.attention_vjp import summed_over_rows
from ..algebra.state import AttentionState
from ..ops.differentiable import Arrays, differentiable
from ..ops.options import Options, shows_options
from .agreement import Together, jointly
from .engine import Engine, engine_of
from .layout import Layout
from .rehearsal import explained
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
    arrays = {"query": query, "key": key, "value": value, "sink": options.pop("sink", None)}
    ring = _Ring(engine_of(group), layout, options)
    return differentiable("ring_attention", arrays, ring.attend, ring.gradients, options)


class _Ring:
    """A call of ``ring_attention``, and its gradients."""

    def __init__(self, engine: Engine, layout: Layout, options: Mapping[str, Any]) -> None:
        self.engine, self.layout, self.options = engine, layout, options

    def attend(self, arrays: Arrays) -> AttentionState:
        return explained("ring_attention", self.engine, arrays, self.options, partial(self._attend, arrays))

    def gradients(self, arrays: Arrays, state: AttentionState, d: AttentionState) -> Arrays:
        backward = partial(self._gradients, state, d)
        return explained("ring_attention_vjp", self.engine, arrays, self.options, backward)

    def _attend(self, arrays: Arrays, engine: Engine) -> AttentionState:
        self.problem = problem = Sequences(engine, arrays, self.layout, self.layout, self.options)
        together, found = Together(engine), dict[range, AttentionState]()
        for step, held in problem.journey([problem.key, problem.value]):
            found = (together(problem.attended, found, *held, step) if held else found) or {}
        state = together(problem.finished, found)
        together.told()
        assert state is not None
        return state

    def _gradients(self, state: AttentionState, d: AttentionState, engine: Engine) -> Arrays:
        """Return the gradients of this rank's arrays: those of keys and values travel with them, lse and d stay.

        A block is as in Dao 2023, algorithm 2.
        """
        self.problem.engine = engine
        problem, xp = self.problem, self.problem.backend.xp
        d = AttentionState(xp.zeros_like(state.out) if d.out is None else d.out, d.lse)
        together, homeward = Together(engine), dict[int, list[Array]]()
        d_query = problem.zeros([problem.query])
        arrive: Callable[[], list[Array]] = list  # nothing
        for step, held in problem.journey([problem.key, problem.value]):
            found = together(problem.gradients, *held, step, state, d) if held else None
            sums = problem.zeros(held)  # what goes on if this rank failed: another one waits for arrays of this shape
            if found is not None:
                d_query, sums = _sums(d_query, found[:1]), found[1:]
            sums = _sums(sums, arrive())
            if held and not problem.goes_on(step):
                homeward[problem.source(step)], sums = sums, []
            coming = problem.like(problem.zeros([problem.key, problem.value]), step + 1) if problem.comes(step) else []
            arrive = engine.shift(sums, coming)
        d_key, d_value = _returned(problem, homeward)
        d_sink = None if problem.sink is None else together(_sink_gradient, problem, state, d)
        together.told()
        found = [xp.astype(x, problem.query.dtype, copy=False) for x in (*d_query, d_key, d_value)]
        return dict(zip(("query", "key", "value", "sink"), (*found, d_sink), strict=True))


def _sums(a: list[Array], b: list[Array]) -> list[Array]:
    """Return sums of arrays; nothing added leaves them."""
    return [x + y for x, y in zip(a, b, strict=True)] if b else a


def _returned(problem: Sequences, homeward: dict[int, list[Array]]) -> list[Array]:
    """Return the sums for this rank's keys and values from the rank where they ended; send those of others to them."""
    engine, size = problem.engine, problem.engine.size
    last = (problem.source(0) + problem.reach[problem.source(0)]) % size
    found = []
    for at, like in enumerate(problem.zeros([problem.key, problem.value])):
        nothing = like[..., :0, :]
        sent = [homeward[rank][at] if rank in homeward else nothing for rank in range(size)]
        shapes = [tuple((like if rank == last else nothing).shape) for rank in range(size)]
        found.append(engine.all_to_all(sent, shapes)[last])
    return found


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
    arrays = {"query": query, "key": key, "value": value, "sink": options.pop("sink", None)}

    def attend(plain: Arrays, engine: Engine) -> AttentionState:
        problem = Sequences(engine, plain, None, layout, options)
        own = jointly(engine, lambda: problem.finished(problem.attend(problem.key, problem.value, 0), partial=True))
        shapes = [[tuple(x.shape)] * engine.size for x in own]
        outs, lses = (engine.all_gather(x, of_ranks) for x, of_ranks in zip(own, shapes, strict=True))
        (_, at), *_ = problem.places(problem.queries)
        total: dict[range, AttentionState] = {}
        for state in map(AttentionState, outs, lses):
            total = problem.merged(total, {at: state})
        return problem.finished(total)

    def forward(plain: Arrays) -> AttentionState:
        return explained("split_attention", engine_of(group), plain, options, partial(attend, plain))

    return differentiable("split_attention", arrays, forward, None, options)
