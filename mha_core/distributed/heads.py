"""Attention in which sequence shards become head shards and back: every rank attends over all positions, in some heads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Unpack

from ..algebra.arrays import Array, device_of, pick
from ..algebra.parts import Part, Positions
from ..algebra.scatter import placed
from ..algebra.state import AttentionState
from ..ops.attend_vjp import attention_gradients
from ..ops.attention import attention_state
from ..ops.differentiable import Arrays
from ..ops.options import Options, shows_options
from .agreement import GatheredErrors
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
    exchange = _Exchange()
    attend, gradients = exchange.attend, exchange.gradients
    return attention_over_ranks("heads_attention", group, (layout, layout), (query, key, value), options, attend, gradients)


@dataclass(frozen=True)
class _Shards:
    """Each rank's heads in the exchange and its positions outside, of queries or of keys and values."""

    heads: list[range]
    positions: tuple[Ranges, ...]
    own: Positions
    """The heads of this rank."""
    length: int
    """The number of positions of this rank."""

    @classmethod
    def of(cls, engine: Engine, heads: list[range], positions: tuple[Ranges, ...]) -> _Shards:
        own = positions_of(engine, [[each] for each in heads])[0]
        return cls(heads, positions, own, sum(map(len, positions_of(engine, positions))))


def _shards(p: Sequences) -> tuple[_Shards, _Shards]:
    """Return the shards of queries, and those of keys and values."""
    if min(x.ndim for x in (p.query, p.key, p.value)) < 3:
        raise ValueError("heads_attention: expected arrays of at least 3 axes, (..., heads, length, head_dim)")
    queries, keys = _heads(p.query.shape[-3], p.key.shape[-3], p.engine.size)
    return _Shards.of(p.engine, queries, p.queries), _Shards.of(p.engine, keys, p.keys)


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
    """A call of ``heads_attention``, and its gradients. A rank that failed sends zeros."""

    def attend(self, p: Sequences, errors: GatheredErrors) -> AttentionState | None:
        self.problem, self.errors = p, errors
        self.queries, self.keys = errors.call_again(_shards, p)
        shards = (self.queries, self.keys, self.keys)
        self.arrays: list[Any] = [self._by_heads(x, each) for x, each in zip((p.query, p.key, p.value), shards, strict=True)]
        self.state = errors.call(lambda: attention_state(*self.arrays, sink=self._sink, **self._options))
        lse = errors.call(lambda state: state.lse[..., None], self.state)
        out = self._by_positions(None if self.state is None else self.state.out, self.queries, p.value.shape[-1], p.query.dtype)
        lse = self._by_positions(lse, self.queries, 1, p.wide)
        return errors.call(lambda: AttentionState(out, lse[..., 0]))  # type: ignore[index, arg-type]

    def gradients(self, p: Sequences, errors: GatheredErrors, state: AttentionState, d: AttentionState) -> Arrays | None:
        """Return the gradients of this rank's arrays, by the same exchanges."""
        self.errors, xp, sink = errors, p.backend.xp, p.sink
        d_out = self._by_heads(errors.call_again(xp.zeros_like, state.out) if d.out is None else d.out, self.queries)
        d_lse = None if d.lse is None else self._by_heads(d.lse[..., None], self.queries)
        wanted = frozenset({"query", "key", "value"} | ({"sink"} if sink is not None else set()))

        def compute() -> Any:
            assert self.state is not None
            arrays = (*self.arrays, self._sink, *self.state, d_out, None if d_lse is None else d_lse[..., 0])
            return attention_gradients(*arrays, wanted=wanted, **self._options)

        gradients: Any = errors.call(compute)
        named = zip(("query", "key", "value"), (p.query, p.key, p.value), (self.queries, self.keys, self.keys), strict=True)
        received = {
            name: self._by_positions(getattr(gradients, name, None), shards, x.shape[-1], x.dtype) for name, x, shards in named
        }
        d_sink = None if sink is None else errors.call(lambda: self._whole_sink(gradients.sink))
        return received | {"sink": d_sink}

    @property
    def _options(self) -> dict[str, Any]:
        """The options of this rank's heads."""
        p = self.problem
        rows, cols = (range(sum(map(len, sum(ranges, ())))) for ranges in (p.queries, p.keys))
        return p.options_of(Part(rows, cols, p.offset, self.queries.own, p.query.shape[-3]))

    @property
    def _sink(self) -> Array | None:
        p = self.problem
        return None if p.sink is None else pick(p.backend.xp, p.sink, self.queries.own, -1)

    def _whole_sink(self, d_sink: Any) -> Array:
        """Return the gradient of the whole sink: 0 in the heads of other ranks."""
        heads, sink = self.queries.own, self.problem.sink
        assert sink is not None and isinstance(heads, range)
        return placed(self.problem.backend.xp, d_sink, [slice(heads.start, heads.stop)], tuple(sink.shape))

    def _by_heads(self, x: Array, shards: _Shards) -> Array | None:
        """(..., heads, this rank's positions, d) -> (..., this rank's heads, positions, d)."""
        p, count = self.problem, len(shards.own)
        shapes = [(*x.shape[:-3], count, sum(map(len, each)), x.shape[-1]) for each in shards.positions]
        parts = p.engine.all_to_all([x[..., each.start : each.stop, :, :] for each in shards.heads], shapes)
        return self.errors.call(in_order, p.backend.xp, parts, shards.positions)

    def _by_positions(self, x: Any, shards: _Shards, width: int, dtype: Any) -> Array | None:
        """(..., this rank's heads, positions, d) -> (..., heads, this rank's positions, d), summed over copies of a head.

        ``x`` is None on a rank that failed; ``width`` is d.
        """
        p, xp, batch = self.problem, self.problem.backend.xp, self.problem.heads_shape[:-1]
        heads, lengths = len(shards.own), [sum(map(len, each)) for each in shards.positions]
        sent = self.errors.call(lambda: [part_of(xp, x, each) for each in shards.positions])
        if sent is None:
            device = device_of(p.query)
            sent = [xp.zeros((*batch, heads, length, width), dtype=dtype, device=device) for length in lengths]
        received = p.engine.all_to_all(sent, [(*batch, len(each), shards.length, width) for each in shards.heads])

        def whole() -> Array:
            sums: dict[int, Array] = {}
            for each, part in zip(shards.heads, received, strict=True):
                sums[each.start] = sums[each.start] + part if each.start in sums else part
            return xp.concat([sums[start] for start in sorted(sums)], axis=-3)

        return self.errors.call(whole)
