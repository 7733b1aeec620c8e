"""A problem whose queries and keys are spread over the ranks of a group."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import cached_property
from typing import Any

from ..algebra import state as states
from ..algebra.arrays import Array, compute_dtype, device_of, is_array, pick
from ..algebra.attention_vjp import AttentionGradients
from ..algebra.biases import as_bias
from ..algebra.grid import check_aligned
from ..algebra.masks import Relation, as_mask
from ..algebra.parts import Part, Positions
from ..algebra.problem import scores_shape
from ..algebra.state import AttentionState
from ..dispatch.selection import agreed
from ..ops.attend_vjp import attention_gradients
from ..ops.attention import attention_state
from ..ops.options import given_options
from .agreement import RanksDiffer, agree
from .engine import Engine
from .layout import Layout, Ranges, layout_of, told_layout

_BY_POSITION = ("mask", "bias", "query_offset", "weight_dropout", "sink")
Places = list[tuple[Positions, range]]
"""Ranges of positions, each with the indices of its elements in a rank's array."""


class Sequences:
    """Queries, keys and values of this rank, and the positions that each rank holds.

    ``query_layout`` is None if every rank holds all queries.
    """

    def __init__(
        self,
        engine: Engine,
        arrays: Mapping[str, Array | None],
        query_layout: Layout | None,
        layout: Layout,
        options: Mapping[str, Any],
    ) -> None:
        self.engine, self.options = engine, options
        query, key, value, sink = arrays.values()

        def facts() -> tuple[dict[str, Any], dict[str, Any]]:
            self.options = given_options(options)
            return _facts(arrays, layout, self.options)

        counts = agree(engine, facts)
        assert query is not None and key is not None and value is not None
        self.query, self.key, self.value, self.sink = query, key, value, sink
        self.backend = agreed(query=query)
        self.keys = self._ranges("key", layout, [its["key"] for its in counts])
        if query_layout is None:
            self.queries: tuple[Ranges, ...] = tuple((range(its["query"]),) for its in counts)
        else:
            self.queries = self._ranges("query", query_layout, [its["query"] for its in counts])
        self._prepare()

    def _ranges(self, name: str, layout: Layout, counts: list[int]) -> tuple[Ranges, ...]:
        ranges = layout_of(layout, sum(counts), self.engine.size)
        for rank, (its, count) in enumerate(zip(ranges, counts, strict=True)):
            if sum(map(len, its)) != count:
                raise RanksDiffer(
                    f"{name} has {count} positions on rank {rank}, where the layout of {sum(counts)} positions "
                    f"has {sum(map(len, its))}"
                )
        return ranges

    def _prepare(self) -> None:
        """Check mask and bias against the whole problem."""
        offset = self.options.get("query_offset")
        self.offset = 0 if offset is None else offset
        self.mask = None if (mask := self.options.get("mask")) is None else as_mask(mask)
        self.bias = None if (bias := self.options.get("bias")) is None else as_bias(bias)
        rows = max((some[-1] + 1 for its in self.queries for some in its if len(some)), default=self.query.shape[-2])
        shape = scores_shape(self.query, self.key, self.value)
        self.heads_shape = () if self.query.ndim == self.key.ndim == self.value.ndim == 2 else shape[:-2]
        """(..., H); () for arrays without a head axis."""
        shape = (*shape[:-2], rows, sum(map(len, sum(self.keys, ()))))
        for name, term in (("mask", self.mask), ("bias", self.bias)):
            for each in () if term is None else term.walk():
                each.check(self.backend.xp, shape)
                check_aligned(name, each, offset, shape)

    # who holds what, and where it goes

    def own(self, ranges: Sequence[Sequence[range]], step: int = 0) -> Sequence[Positions]:
        """Return the ranges of the rank that comes ``step`` ranks before this one, of those of all ranks."""
        return positions_of(self.engine, ranges, step)

    def places(self, ranges: tuple[Ranges, ...], step: int = 0) -> Places:
        """Return the positions of the rank that comes ``step`` ranks before this one, with their places in its arrays."""
        own = self.own(ranges, step)
        ends = [0]
        for some in own:
            ends.append(ends[-1] + len(some))
        return [(some, range(start, end)) for some, start, end in zip(own, ends, ends[1:], strict=False)]

    @cached_property
    def reach(self) -> list[int]:
        """For each rank, how many ranks further its keys are wanted."""
        size = self.engine.size
        far_first = range(size - 1, -1, -1)
        found = [next(step for step in far_first if step == 0 or self._wants((s + step) % size, s)) for s in range(size)]
        return found if self.engine.rank is not None else [max(found)] * size

    def _wants(self, rank: int, source: int) -> bool:
        """Whether some query of a rank may see some key of another."""
        return any(
            Part(rows, cols, self.offset).relation(self.backend.xp, self.mask) is not Relation.NONE
            for rows in self.queries[rank]
            for cols in self.keys[source]
        )

    def goes_on(self, step: int) -> bool:
        """Whether the next rank wants the keys that came ``step`` ranks to this one."""
        return self.reach[((self.engine.rank or 0) - step) % self.engine.size] > step

    def comes(self, step: int) -> bool:
        """Whether the rank before this one sends the keys that came ``step`` ranks to it."""
        return self.reach[((self.engine.rank or 0) - step - 1) % self.engine.size] > step

    def source(self, step: int) -> int:
        """Return the rank that comes ``step`` ranks before this one."""
        assert self.engine.rank is not None
        return (self.engine.rank - step) % self.engine.size

    def like(self, arrays: list[Array], step: int) -> list[tuple[tuple[int, ...], Array]]:
        """Return the shapes that arrays over keys have ``step`` ranks before this one."""
        length = sum(map(len, self.keys[((self.engine.rank or 0) - step) % self.engine.size]))
        return [((*x.shape[:-2], length, x.shape[-1]), x) for x in arrays]

    def journey(self, arrays: list[Array]) -> Iterator[tuple[int, list[Array]]]:
        """Yield for each step the arrays over keys that came ``step`` ranks, or none; the next are on their way meanwhile."""
        held = arrays
        for step in range(self.engine.size):
            coming = self.like(arrays, step + 1) if self.comes(step) else []
            arrive = self.engine.shift(held if self.goes_on(step) else [], coming)
            yield step, held
            held = arrive()

    # what this rank computes

    def _parts(self, step: int) -> Iterator[tuple[range, range, Part]]:
        """Yield the parts of this rank's queries over the keys of another, with the indices of their queries and keys."""
        cols = self.places(self.keys, step)
        for positions, at in self.places(self.queries):
            for others, place in cols:
                part = Part(positions, others, self.offset)
                if part.relation(self.backend.xp, self.mask) is not Relation.NONE:
                    yield at, place, part

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
        found: dict[range, AttentionState] = {}
        for at, place, part in self._parts(step):
            arrays = (self._at(x, index) for x, index in ((self.query, at), (key, place), (value, place)))
            found = self.merged(found, {at: attention_state(*arrays, **self.options_of(part))})
        return found

    def attended(self, before: dict[range, AttentionState], key: Array, value: Array, step: int) -> dict[range, AttentionState]:
        """Return the states before, merged with those over keys that came ``step`` ranks."""
        return self.merged(before, self.attend(key, value, step))

    def _at(self, x: Array, index: range) -> Array:
        return pick(self.backend.xp, x, index, -2)

    def merged(self, a: dict[range, AttentionState], b: dict[range, AttentionState]) -> dict[range, AttentionState]:
        """Return the states of ranges as one for each; a range that is missing has seen no keys."""
        both = {at: states.merge(self.backend.xp, a[at], b[at]) for at in a.keys() & b.keys()}
        return {**a, **b, **both}

    @property
    def wide(self) -> Any:
        """The dtype of sums."""
        return compute_dtype(self.backend.xp, self.query.dtype)

    def finished(self, found: dict[range, AttentionState], *, partial: bool = False) -> AttentionState:
        """Return the state of this rank's queries, in the dtype of the query; ``partial``: in that of lse, without the sink."""
        xp, sink, kept = self.backend.xp, None if partial else self.sink, []
        for _, at in self.places(self.queries):
            shape = (*self.heads_shape, len(at))
            if at in found:
                total = AttentionState(xp.astype(found[at].out, self.wide, copy=False), found[at].lse)
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
        for at, place, part in self._parts(step):
            arrays = [self._at(x, index) for x, index in ((self.query, at), (key, place), (value, place))]
            (out, lse), (d_out, d_lse) = (self._rows(each, at) for each in (state, d))
            found: AttentionGradients = attention_gradients(
                *arrays, None, out, lse, d_out, d_lse, wanted=wanted, **self.options_of(part)
            )
            totals = [
                _added(xp, total, index, xp.astype(gradient, self.wide))
                for total, gradient, index in zip(totals, found[:3], (at, place, place), strict=True)
            ]
        return totals

    def _rows(self, state: AttentionState, at: range) -> AttentionState:
        """Return some rows of a state, or of its gradients; its lse may be None."""
        lse = None if state.lse is None else self._at(state.lse[..., None], at)[..., 0]
        return AttentionState(self._at(state.out, at), lse)


def positions_of(engine: Engine, ranges: Sequence[Sequence[range]], step: int = 0) -> Sequence[Positions]:
    """Return the ranges of the rank that comes ``step`` ranks before this one, of those of all ranks."""
    theirs = [ranges[(rank - step) % engine.size] for rank in range(engine.size)]
    if engine.rank is not None:
        return theirs[engine.rank]
    if len({tuple((len(some), some.step) for some in its) for its in ranges}) > 1 or ranges[0][0].step != 1:
        raise ValueError(
            "ranks that run one compiled program must hold ranges of the same lengths, of successive positions: "
            "take the layout 'contiguous' or 'zigzag', and a length that divides"
        )
    return [engine.own(list(slot)) for slot in zip(*theirs, strict=True)]  # type: ignore[attr-defined]


def _added(xp: Any, total: Array, index: range, x: Array) -> Array:
    """Return the sum of an array, and another at some of its indices along the length."""
    if len(index) == total.shape[-2]:
        return total + x
    before, inside, after = (
        total[..., start:stop, :]
        for start, stop in ((0, index.start), (index.start, index.stop), (index.stop, total.shape[-2]))
    )
    return xp.concat([before, inside + x, after], axis=-2)


def _facts(
    arrays: Mapping[str, Array | None], layout: Layout, options: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Check this rank's arguments; return what must be the same on all ranks, and the lengths, which are its own."""
    query, key, value, sink = arrays.values()
    assert query is not None and key is not None and value is not None
    backend = agreed(query=query, key=key, value=value)
    scores_shape(query, key, value, sink)
    same: dict[str, Any] = {"backend": backend.name, "layout": told_layout(layout)}
    for name, x in (("query", query), ("key", key), ("value", value)):
        same |= {f"the dtype of {name}": str(x.dtype), f"the shape of {name}": [*x.shape[:-2], "length", x.shape[-1]]}
    given = dict(options) if sink is None else {**options, "sink": sink}
    same |= {f"option {name}": _told(option) for name, option in given.items()}
    features = backend.features([query, key, value, sink])
    same |= {"gradients": "recorded"} if "gradient" in features else {}
    return same, {"query": query.shape[-2], "key": key.shape[-2]}


def _told(value: Any) -> str:
    """Return what an option is, as far as ranks can compare it: arrays by shape and dtype."""
    if is_dataclass(value):
        return (
            f"{type(value).__name__}({', '.join(f'{each.name}={_told(getattr(value, each.name))}' for each in fields(value))})"
        )
    if is_array(value):
        return f"an array {tuple(value.shape)} of {value.dtype}"
    return repr(value) if value is None or isinstance(value, int | float | str | tuple) else type(value).__name__
