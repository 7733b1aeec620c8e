"""Attention in which sequence shards become head shards and back: every rank attends over all positions, in some heads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Unpack

from ..algebra.arrays import Array, pick
from ..algebra.parts import Part, Positions
from ..algebra.scatter import placed
from ..algebra.state import AttentionState
from ..ops.attend_vjp import attention_gradients
from ..ops.attention import attention_state
from ..ops.differentiable import Arrays
from ..ops.options import Options, shows_options
from .agreement import with_gathered_errors
from .engine import Engine
from .layout import Layout, Ranges, pieces_of, positions_of
from .rehearsal import attention_over_ranks
from .sequences import Sequences
from .shards import in_order, part_of


@shows_options
def heads_attention(
    query: Array, key: Array, value: Array, *, group: Any, layout: Layout = "contiguous", **options: Unpack[Options]
) -> AttentionState:
    """Attention of this rank's queries over all keys: each rank gets some heads of all positions, attends, and sends back.

    Source: Jacobs et al. 2023. Two exchanges instead of a ring, and each rank calls one kernel; the ranks divide the heads.

    Parameters, returns, errors: as ``ring_attention``, with arrays of at least 3 axes. ValueError too if there are fewer key
    heads than ranks, unless their number divides that of the ranks, which divides that of the query heads.
    """
    exchange = _Exchange(layout)
    return attention_over_ranks("heads_attention", group, (query, key, value), options, exchange.attend, exchange.gradients)


@dataclass(frozen=True)
class _Shards:
    """Each rank's heads in the exchange and its positions outside, of queries or of keys and values."""

    heads: list[range]
    positions: tuple[Ranges, ...]


def _heads(num_heads: int, num_kv_heads: int, size: int) -> tuple[list[range], list[range]]:
    """Return the query heads and the key heads of each rank."""
    group = num_heads // num_kv_heads
    if num_kv_heads >= size:
        keys = pieces_of(num_kv_heads, size)
        return [range(each.start * group, each.stop * group) for each in keys], keys
    if size % num_kv_heads or num_heads % size:
        raise ValueError(
            f"{num_kv_heads} key heads and {num_heads} query heads do not divide among {size} ranks: use ring_attention"
        )
    queries = pieces_of(num_heads, size)
    return queries, [range(each.start // group, each.start // group + 1) for each in queries]


class _Exchange:
    """A call of ``heads_attention``, and its gradients."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout

    def attend(self, arrays: Arrays, options: Mapping[str, Any], engine: Engine) -> AttentionState:
        self.problem = p = Sequences(engine, arrays, self.layout, self.layout, options)
        if min(x.ndim for x in (p.query, p.key, p.value)) < 3:
            raise ValueError("heads_attention: expected arrays of at least 3 axes, (..., heads, length, head_dim)")
        query_heads, key_heads = _heads(p.query.shape[-3], p.key.shape[-3], engine.size)
        self.queries, self.keys = _Shards(query_heads, p.queries), _Shards(key_heads, p.keys)
        shards = (self.queries, self.keys, self.keys)
        self.arrays = [self._by_heads(x, each) for x, each in zip((p.query, p.key, p.value), shards, strict=True)]
        self.state = with_gathered_errors(engine, lambda: attention_state(*self.arrays, sink=self._sink, **self._options))
        out, lse = (self._by_positions(x, self.queries) for x in (self.state.out, self.state.lse[..., None]))
        return AttentionState(out, lse[..., 0])

    def gradients(self, state: AttentionState, d: AttentionState, engine: Engine) -> Arrays:
        """Return the gradients of this rank's arrays, by the same exchanges."""
        self.problem.engine = engine
        xp, sink = self.problem.backend.xp, self.problem.sink
        d_out = self._by_heads(xp.zeros_like(state.out) if d.out is None else d.out, self.queries)
        d_lse = None if d.lse is None else self._by_heads(d.lse[..., None], self.queries)[..., 0]
        wanted = frozenset({"query", "key", "value"} | ({"sink"} if sink is not None else set()))
        arrays = (*self.arrays, self._sink, *self.state, d_out, d_lse)
        gradients = with_gathered_errors(engine, lambda: attention_gradients(*arrays, wanted=wanted, **self._options))
        return {
            "query": self._by_positions(gradients.query, self.queries),
            "key": self._by_positions(gradients.key, self.keys),
            "value": self._by_positions(gradients.value, self.keys),
            "sink": None if sink is None else self._whole_sink(gradients.sink),
        }

    def _rank_heads(self, shards: _Shards) -> Positions:
        """Return the heads of this rank."""
        return positions_of(self.problem.engine, [[each] for each in shards.heads])[0]

    @property
    def _options(self) -> dict[str, Any]:
        """The options of this rank's heads."""
        p = self.problem
        rows, cols = (range(sum(map(len, sum(ranges, ())))) for ranges in (p.queries, p.keys))
        return p.options_of(Part(rows, cols, p.offset, self._rank_heads(self.queries), p.query.shape[-3]))

    @property
    def _sink(self) -> Array | None:
        p = self.problem
        return None if p.sink is None else pick(p.backend.xp, p.sink, self._rank_heads(self.queries), -1)

    def _whole_sink(self, d_sink: Any) -> Array:
        """Return the gradient of the whole sink: 0 in the heads of other ranks."""
        heads, sink = self._rank_heads(self.queries), self.problem.sink
        assert sink is not None and isinstance(heads, range)
        return placed(self.problem.backend.xp, d_sink, [slice(heads.start, heads.stop)], tuple(sink.shape))

    def _by_heads(self, x: Array, shards: _Shards) -> Array:
        """(..., heads, this rank's positions, d) -> (..., this rank's heads, positions, d)."""
        p, count = self.problem, len(self._rank_heads(shards))
        shapes = [(*x.shape[:-3], count, sum(map(len, each)), x.shape[-1]) for each in shards.positions]
        parts = p.engine.all_to_all([x[..., each.start : each.stop, :, :] for each in shards.heads], shapes)
        return in_order(p.backend.xp, parts, shards.positions)

    def _by_positions(self, x: Any, shards: _Shards) -> Array:
        """(..., this rank's heads, positions, d) -> (..., heads, this rank's positions, d), summed over copies of a head."""
        p, xp = self.problem, self.problem.backend.xp
        count = sum(map(len, positions_of(p.engine, shards.positions)))
        shapes = [(*x.shape[:-3], len(each), count, x.shape[-1]) for each in shards.heads]
        received = p.engine.all_to_all([part_of(xp, x, each) for each in shards.positions], shapes)
        sums: dict[int, Array] = {}
        for each, part in zip(shards.heads, received, strict=True):
            sums[each.start] = sums[each.start] + part if each.start in sums else part
        return xp.concat([sums[start] for start in sorted(sums)], axis=-3)
