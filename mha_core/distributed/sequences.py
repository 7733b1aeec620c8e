"""A problem whose queries and keys are spread over the ranks of a group."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import cached_property
from typing import Any

from ..algebra import state as states
from ..algebra.arrays import Array, compute_dtype, device_of, is_array, pick
from ..algebra.biases import as_bias
from ..algebra.expressions import as_mask
from ..algebra.grid import Relation, check_aligned
from ..algebra.parts import Part, Positions
from ..algebra.problem import scores_shape
from ..algebra.state import AttentionState
from ..dispatch.selection import check_floating
from ..ops.attend_vjp import attention_gradients
from ..ops.attention import attention_state
from .agreement import agreed_ranges, check_same
from .engine import Engine, Shape
from .layout import Layout, Ranges, layout_json, places, positions_of

_BY_POSITION = ("mask", "bias", "query_offset", "weight_dropout", "sink")


class Sequences:
    """Queries, keys and values of this rank, and the positions that each rank holds.

    ``layouts`` are those of queries and keys; that of the queries is None if every rank holds all of them. ``lengths`` are
    what the ranks agreed on by ``facts_of``: nothing here differs from rank to rank but the numbers in the arrays.
    """

    def __init__(
        self,
        engine: Engine,
        arrays: Mapping[str, Array | None],
        layouts: tuple[Layout | None, Layout],
        options: Mapping[str, Any],
        lengths: Mapping[str, list[int]],
    ) -> None:
        self.engine, self.options, (query_layout, layout) = engine, options, layouts
        query, key, value, sink = arrays.values()
        assert query is not None and key is not None and value is not None
        self.query, self.key, self.value, self.sink = query, key, value, sink
        self.backend = check_floating(query=query)
        self.wide = compute_dtype(self.backend.xp, query.dtype)
        """The dtype of sums."""
        self.keys = agreed_ranges("key", layout, lengths["key"])
        if query_layout is None:
            check_same([{"the length of query": length} for length in lengths["query"]])
            self.queries: tuple[Ranges, ...] = tuple((range(length),) for length in lengths["query"])
        else:
            self.queries = agreed_ranges("query", query_layout, lengths["query"])
        self._prepare()

    def _prepare(self) -> None:
        """Check mask and bias against the whole problem."""
        offset = self.options.get("query_offset")
        self.offset = 0 if offset is None else offset
        self.mask = None if (mask := self.options.get("mask")) is None else as_mask(mask)
        self.bias = None if (bias := self.options.get("bias")) is None else as_bias(bias)
        rows = max((each[-1] + 1 for each in sum(self.queries, ()) if len(each)), default=self.query.shape[-2])
        shape = scores_shape(self.query, self.key, self.value)
        self.heads_shape = () if self.query.ndim == self.key.ndim == self.value.ndim == 2 else shape[:-2]
        """(..., H); () for arrays without a head axis."""
        shape = (*shape[:-2], rows, sum(map(len, sum(self.keys, ()))))
        for name, term in (("mask", self.mask), ("bias", self.bias)):
            for each in () if term is None else term.walk():
                each.check(self.backend.xp, shape)
                check_aligned(name, each, offset, shape)

    # the positions of each rank, and the ring

    def places(self, ranges: tuple[Ranges, ...], step: int = 0) -> list[tuple[Positions, range]]:
        """Return the positions of the rank that comes ``step`` ranks before this one, with their places in its arrays."""
        return places(positions_of(self.engine, ranges, step))

    @cached_property
    def reach(self) -> list[int]:
        """The number of steps that each rank's keys travel along the ring, as far as some rank sees them."""
        size = self.engine.size
        reach = [
            next((step for step in range(size - 1, 0, -1) if self._sees((source + step) % size, source)), 0)
            for source in range(size)
        ]
        return reach if self.engine.rank is not None else [max(reach)] * size

    def _sees(self, rank: int, source: int) -> bool:
        """Return whether some query of a rank may see some key of another."""
        return any(
            Part(rows, cols, self.offset).relation(self.backend.xp, self.mask) is not Relation.NONE
            for rows in self.queries[rank]
            for cols in self.keys[source]
        )

    def source(self, step: int) -> int:
        """Return the rank that comes ``step`` ranks before this one; in one compiled program, before rank 0, as good as any."""
        return ((self.engine.rank or 0) - step) % self.engine.size

    def sends_at(self, step: int) -> bool:
        """Return whether this rank sends the keys that it holds at a step to the next rank."""
        return self.reach[self.source(step)] > step

    def received_at(self, step: int, arrays: list[Array]) -> list[tuple[Shape, Array]]:
        """Return the shapes of the arrays over keys that this rank receives at a step, each with an array like it; or []."""
        source = self.source(step + 1)
        if self.reach[source] <= step:
            return []
        length = sum(map(len, self.keys[source]))
        return [((*x.shape[:-2], length, x.shape[-1]), x) for x in arrays]

    def ring_steps(self, arrays: list[Array]) -> Iterator[tuple[int, list[Array]]]:
        """Yield for each step the arrays over keys that this rank holds, or []; the next ones arrive meanwhile."""
        held = arrays
        for step in range(self.engine.size):
            receive = self.engine.shift(held if self.sends_at(step) else [], self.received_at(step, arrays))
            yield step, held
            held = receive()

    # what this rank computes

    def _parts(self, key: Array, value: Array, step: int) -> Iterator[tuple[range, range, list[Array], dict[str, Any]]]:
        """Yield the parts of this rank's queries over keys that came ``step`` ranks: rows, columns, arrays and options."""
        xp, keys = self.backend.xp, self.places(self.keys, step)
        for queries, rows in self.places(self.queries):
            for positions, cols in keys:
                part = Part(queries, positions, self.offset)
                if part.relation(xp, self.mask) is not Relation.NONE:
                    arrays = [pick(xp, x, index, -2) for x, index in ((self.query, rows), (key, cols), (value, cols))]
                    yield rows, cols, arrays, self.options_of(part)

    def options_of(self, part: Part) -> dict[str, Any]:
        """Return the options of a part, but for the sink."""
        xp = self.backend.xp
        return {
            **{name: value for name, value in self.options.items() if name not in _BY_POSITION},
            "mask": part.mask(xp, self.mask),
            "bias": part.bias(xp, self.bias),
            "weight_dropout": part.dropout(xp, self.options.get("weight_dropout")),
            "query_offset": part.query_offset,
        }

    def attend(self, key: Array, value: Array, step: int) -> dict[range, AttentionState]:
        """Return the state of each range of this rank's queries over keys that came ``step`` ranks, if they see any."""
        total: dict[range, AttentionState] = {}
        for rows, _, arrays, options in self._parts(key, value, step):
            total = self.merged(total, {rows: attention_state(*arrays, **options)})
        return total

    def merged(self, a: dict[range, AttentionState], b: dict[range, AttentionState]) -> dict[range, AttentionState]:
        """Return the states of ranges as one for each; a range that is missing has seen no keys."""
        both = {rows: states.merge(self.backend.xp, a[rows], b[rows]) for rows in a.keys() & b.keys()}
        return {**a, **b, **both}

    def finished(self, totals: dict[range, AttentionState], *, partial: bool = False) -> AttentionState:
        """Return the state of this rank's queries, in the dtype of the query; ``partial``: in that of lse, without the sink."""
        xp, sink, kept = self.backend.xp, None if partial else self.sink, []
        for _, rows in self.places(self.queries):
            shape = (*self.heads_shape, len(rows))
            if rows in totals:
                total = AttentionState(xp.astype(totals[rows].out, self.wide, copy=False), totals[rows].lse)
            else:
                total = states.identity(xp, shape, self.value.shape[-1], dtype=self.wide, device=device_of(self.query))
            if sink is not None:
                lse = xp.broadcast_to(xp.astype(sink, self.wide)[:, None], shape)
                total = states.merge(xp, total, AttentionState(xp.zeros_like(total.out), lse))
            kept.append(AttentionState(xp.astype(total.out, self.wide if partial else self.query.dtype, copy=False), total.lse))
        return states.concat_queries(xp, kept)

    def zeros(self, arrays: Sequence[Array]) -> list[Array]:
        """Return zeros of the shapes of arrays, in the dtype of sums."""
        return [self.backend.xp.zeros(tuple(x.shape), dtype=self.wide, device=device_of(x)) for x in arrays]

    def gradients(self, key: Array, value: Array, step: int, state: AttentionState, d: AttentionState) -> list[Array]:
        """Return the gradients of this rank's queries, and of keys and values that came ``step`` ranks, by its scores alone.

        ``state`` is that of the whole problem, ``d`` its gradients; d.lse may be None. The results have the dtype of sums.
        """
        xp, wanted = self.backend.xp, frozenset({"query", "key", "value"})
        totals = self.zeros([self.query, key, value])
        for rows, cols, arrays, options in self._parts(key, value, step):
            (out, lse), (d_out, d_lse) = (self._rows(each, rows) for each in (state, d))
            gradients = attention_gradients(*arrays, None, out, lse, d_out, d_lse, wanted=wanted, **options)
            totals = [
                _added(xp, total, index, xp.astype(gradient, self.wide))
                for total, gradient, index in zip(totals, gradients[:3], (rows, cols, cols), strict=True)
            ]
        return totals

    def _rows(self, state: AttentionState, rows: range) -> AttentionState:
        """Return some rows of a state, or of its gradients; its lse may be None."""
        xp = self.backend.xp
        lse = None if state.lse is None else pick(xp, state.lse, rows, -1)
        return AttentionState(pick(xp, state.out, rows, -2), lse)


def _added(xp: Any, total: Array, index: range, x: Array) -> Array:
    """Return the sum of an array, and another at some of its indices along the length."""
    if len(index) == total.shape[-2]:
        return total + x
    before, inside, after = (
        total[..., start:stop, :]
        for start, stop in ((0, index.start), (index.start, index.stop), (index.stop, total.shape[-2]))
    )
    return xp.concat([before, inside + x, after], axis=-2)


def facts_of(
    arrays: Mapping[str, Array | None], layout: Layout, options: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, int]]:
    """Check this rank's arguments; return what must be the same on all ranks, and the lengths of query and key."""
    query, key, value, sink = arrays.values()
    backend = check_floating(query=query, key=key, value=value)  # refuses None
    assert query is not None and key is not None and value is not None
    scores_shape(query, key, value, sink)
    shared: dict[str, Any] = {"backend": backend.name, "layout": layout_json(layout)}
    for name, x in (("query", query), ("key", key), ("value", value)):
        shared |= {f"the dtype of {name}": str(x.dtype), f"the shape of {name}": [*x.shape[:-2], "length", x.shape[-1]]}
    shared |= {f"option {name}": _option_text(option) for name, option in options.items()}
    shared |= {} if sink is None else {"option sink": _option_text(sink)}
    return shared, {"query": query.shape[-2], "key": key.shape[-2]}


def _option_text(option: Any) -> str:
    """Return the text by which ranks compare an option: of an array, its shape and dtype."""
    if is_dataclass(option):
        values = (f"{field.name}={_option_text(getattr(option, field.name))}" for field in fields(option))
        return f"{type(option).__name__}({', '.join(values)})"
    if is_array(option):
        return f"an array {tuple(option.shape)} of {option.dtype}"
    return repr(option) if option is None or isinstance(option, int | float | str | tuple) else type(option).__name__


def is_described(option: Any) -> bool:
    """Return whether the text of an option tells all on which its checks and relations depend: not that of a function."""
    if is_dataclass(option):
        return all(is_described(getattr(option, field.name)) for field in fields(option))
    return option is None or is_array(option) or isinstance(option, int | float | str | tuple)
