"""Attention in which sequence shards become head shards and back: every rank attends over all positions, in some heads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Unpack

from ..algebra.arrays import Array, pick
from ..algebra.attention_vjp import AttentionGradients
from ..algebra.parts import Part, Positions
from ..algebra.state import AttentionState
from ..ops.attend_vjp import attention_gradients
from ..ops.attention import attention_state
from ..ops.differentiable import Arrays, differentiable
from ..ops.options import Options, shows_options
from .agreement import jointly
from .engine import Engine, engine_of
from .layout import Layout, Ranges, pieces_of
from .rehearsal import explained
from .sequences import Sequences
from .shards import in_order


@shows_options
def heads_attention(
    query: Array, key: Array, value: Array, *, group: Any, layout: Layout = "contiguous", **options: Unpack[Options]
) -> AttentionState:
    """Attention of this rank's queries over all keys: each rank gets some heads of all positions, attends, and sends back.

    Source: Jacobs et al. 2023. Two exchanges instead of a ring, and each rank calls one kernel; the ranks divide the heads.

    Parameters, returns, errors: as ``ring_attention``, with arrays of at least 3 axes. ValueError too if there are fewer key
    heads than ranks, unless their number divides that of the ranks, which divides that of the query heads.
    """
    arrays = {"query": query, "key": key, "value": value, "sink": options.pop("sink", None)}
    exchange = _Exchange(engine_of(group), layout, options)
    return differentiable("heads_attention", arrays, exchange.attend, exchange.gradients, options)


@dataclass(frozen=True)
class _Heads:
    """The query heads and the key heads of each rank."""

    queries: list[range]
    keys: list[range]

    @classmethod
    def of(cls, num_heads: int, num_kv_heads: int, size: int) -> _Heads:
        group = num_heads // num_kv_heads
        if num_kv_heads >= size:
            keys = pieces_of(num_kv_heads, size)
            return cls([range(its.start * group, its.stop * group) for its in keys], keys)
        if size % num_kv_heads or num_heads % size:
            raise ValueError(
                f"{num_kv_heads} key heads and {num_heads} query heads do not divide among {size} ranks: use ring_attention"
            )
        queries = pieces_of(num_heads, size)
        return cls(queries, [range(its.start // group, its.start // group + 1) for its in queries])


class _Exchange:
    """A call of ``heads_attention``, and its gradients."""

    def __init__(self, engine: Engine, layout: Layout, options: Mapping[str, Any]) -> None:
        self.engine, self.layout, self.options = engine, layout, options

    def attend(self, arrays: Arrays) -> AttentionState:
        return explained("heads_attention", self.engine, arrays, self.options, partial(self._attend, arrays))

    def gradients(self, arrays: Arrays, state: AttentionState, d: AttentionState) -> Arrays:
        backward = partial(self._gradients, state, d)
        return explained("heads_attention_vjp", self.engine, arrays, self.options, backward)

    def _attend(self, arrays: Arrays, engine: Engine) -> AttentionState:
        self.problem = p = Sequences(engine, arrays, self.layout, self.layout, self.options)
        if min(x.ndim for x in (p.query, p.key, p.value)) < 3:
            raise ValueError("heads_attention: expected arrays of at least 3 axes, (..., heads, length, head_dim)")
        self.heads = heads = _Heads.of(p.query.shape[-3], p.key.shape[-3], engine.size)
        self.query, self.key, self.value = (
            self._gathered(x, of_ranks, ranges)
            for x, of_ranks, ranges in (
                (p.query, heads.queries, p.queries),
                (p.key, heads.keys, p.keys),
                (p.value, heads.keys, p.keys),
            )
        )
        whole = (self.query, self.key, self.value)
        self.state = jointly(engine, lambda: attention_state(*whole, sink=self._sink, **self._of_heads))
        out, lse = (self._scattered(x, heads.queries, p.queries) for x in (self.state.out, self.state.lse[..., None]))
        return AttentionState(out, lse[..., 0])

    def _gradients(self, state: AttentionState, d: AttentionState, engine: Engine) -> Arrays:
        """Return the gradients of this rank's arrays, by the same exchanges."""
        self.problem.engine = engine
        p, heads, xp = self.problem, self.heads, self.problem.backend.xp
        d_out = xp.zeros_like(state.out) if d.out is None else d.out
        d_out = self._gathered(d_out, heads.queries, p.queries)
        d_lse = None if d.lse is None else self._gathered(d.lse[..., None], heads.queries, p.queries)[..., 0]
        wanted = frozenset({"query", "key", "value"} | ({"sink"} if p.sink is not None else set()))
        whole = (self.query, self.key, self.value, self._sink, *self.state)
        found: AttentionGradients = jointly(
            engine, lambda: attention_gradients(*whole, d_out, d_lse, wanted=wanted, **self._of_heads)
        )
        d_sink = None if p.sink is None else self._among_zeros(found.sink)
        of = {
            "query": (found.query, heads.queries, p.queries),
            "key": (found.key, heads.keys, p.keys),
            "value": (found.value, heads.keys, p.keys),
        }
        return {**{name: self._scattered(*each) for name, each in of.items()}, "sink": d_sink}

    @property
    def _own(self) -> Positions:
        """The query heads of this rank."""
        return self.problem.own([[its] for its in self.heads.queries])[0]

    @property
    def _of_heads(self) -> dict[str, Any]:
        """The options of this rank's heads."""
        p = self.problem
        rows, cols = (range(sum(map(len, sum(ranges, ())))) for ranges in (p.queries, p.keys))
        return p.options_of(Part(rows, cols, p.offset, self._own, p.query.shape[-3]))

    @property
    def _sink(self) -> Array | None:
        return None if self.problem.sink is None else pick(self.problem.backend.xp, self.problem.sink, self._own, -1)

    def _among_zeros(self, d_sink: Any) -> Array:
        """Return the gradient of the whole sink: 0 in the heads of other ranks."""
        sink, own, xp = self.problem.sink, self._own, self.problem.backend.xp
        assert sink is not None and isinstance(own, range)
        before, after = xp.zeros_like(sink[: own.start]), xp.zeros_like(sink[own.stop :])
        return xp.concat([before, d_sink, after], axis=0)

    def _gathered(self, x: Array, heads: list[range], ranges: tuple[Ranges, ...]) -> Array:
        """(..., heads, own positions, d) -> (..., own heads, all positions, d)."""
        count = len(self.problem.own([[its] for its in heads])[0])
        shapes = [(*x.shape[:-3], count, sum(map(len, its)), x.shape[-1]) for its in ranges]
        parts = self.problem.engine.all_to_all([x[..., its.start : its.stop, :, :] for its in heads], shapes)
        return in_order(self.problem.backend.xp, parts, ranges)

    def _scattered(self, x: Any, heads: list[range], ranges: tuple[Ranges, ...]) -> Array:
        """(..., own heads, all positions, d) -> (..., heads, own positions, d): the sum over ranks that share a head."""
        p, xp = self.problem, self.problem.backend.xp
        count = sum(map(len, p.own(ranges)))
        shapes = [(*x.shape[:-3], len(its), count, x.shape[-1]) for its in heads]
        sent = [xp.concat([x[..., some.start : some.stop : some.step, :] for some in its], axis=-2) for its in ranges]
        sums: dict[int, Array] = {}
        for its, part in zip(heads, self.problem.engine.all_to_all(sent, shapes), strict=True):
            sums[its.start] = sums[its.start] + part if its.start in sums else part
        return xp.concat([sums[start] for start in sorted(sums)], axis=-3)
