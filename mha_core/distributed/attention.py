"""Attention over keys and values that are spread over the ranks of a group."""

from __future__ import annotations

from typing import Unpack

from ..algebra.arrays import Array
from ..algebra.state import AttentionState
from ..ops.options import Options, shows_options
from .engine import Engine
from .layout import Layout
from .sequences import Sequences


@shows_options
def ring_attention(
    query: Array, key: Array, value: Array, *, group: Engine, layout: Layout = "contiguous", **options: Unpack[Options]
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
    group : Engine
        The ranks. All of them make this call, with the same layout and options.
    layout : as ``layout_of``
        Which positions each rank holds, of the queries and of the keys.
    options : as ``scaled_dot_product_attention``
        In the positions of the whole problem; a sink is not sharded either.

    Returns
    -------
    AttentionState
        ``out`` (..., H, l, E) and ``lse`` (..., H, l), of this rank's queries.

    Raises
    ------
    RanksDiffer
        On all ranks, where shapes, dtypes, options or layouts differ; the message names the ranks.
    RankFailed
        If the arguments of another rank are not valid. On that rank, its own error is raised.
    """
    problem = Sequences(group, (query, key, value), layout, layout, dict(options))
    size, rank = group.size, group.rank
    # how many ranks further the keys of each rank are wanted
    reach = [max(step for step in range(size) if step == 0 or problem.wants((s + step) % size, s)) for s in range(size)]
    found: list[AttentionState | None] = [None] * len(problem.queries[rank])
    held = [key, value]
    for step in range(size):
        source, coming = (rank - step) % size, (rank - step - 1) % size
        length = sum(map(len, problem.keys[coming]))
        like = [((*x.shape[:-2], length, x.shape[-1]), x) for x in (key, value)]
        arrive = group.shift(held if reach[source] > step else [], like if reach[coming] > step else [])
        if held:
            found = [problem.merged(a, b) for a, b in zip(found, problem.attend(held[0], held[1], source), strict=True)]
        held = arrive()
    return problem.finished(found)


@shows_options
def split_attention(
    query: Array, key: Array, value: Array, *, group: Engine, layout: Layout = "contiguous", **options: Unpack[Options]
) -> AttentionState:
    """Attention of queries that all ranks know over keys and values that are split over them, as in decoding.

    Each rank attends to its own keys, and the states are merged, in the order of the ranks: all return the same bits.

    Parameters, errors: as ``ring_attention``; ``query`` (..., H, L, D) is the same array on all ranks.

    Returns
    -------
    AttentionState
        ``out`` (..., H, L, E) and ``lse`` (..., H, L), the same on all ranks.
    """
    problem = Sequences(group, (query, key, value), None, layout, dict(options))
    own = problem.finished(problem.attend(key, value, group.rank), partial=True)
    outs, lses = (group.all_gather(x, [tuple(x.shape)] * group.size) for x in own)
    total = None
    for state in map(AttentionState, outs, lses):
        total = problem.merged(total, state)
    return problem.finished([total])
