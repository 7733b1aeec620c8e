"""A problem whose queries and keys are spread over the ranks of a group."""

from __future__ import annotations

from typing import Any

from ..algebra import state as states
from ..algebra.arrays import Array, device_of
from ..algebra.biases import as_bias
from ..algebra.grid import check_aligned
from ..algebra.masks import Relation, as_mask
from ..algebra.parts import Part
from ..algebra.problem import scores_shape
from ..algebra.state import AttentionState
from ..dispatch.selection import agreed
from ..ops.attention import attention_state
from ..ops.options import given_options
from .engine import Engine, RanksDiffer, agree
from .layout import Layout, Ranges, layout_of

_BY_POSITION = ("mask", "bias", "query_offset", "weight_dropout", "sink")


class Sequences:
    """Queries, keys and values of this rank, and the positions that each rank holds.

    ``query_layout`` is None if every rank holds all queries.
    """

    def __init__(
        self,
        engine: Engine,
        arrays: tuple[Array, Array, Array],
        query_layout: Layout | None,
        layout: Layout,
        options: dict[str, Any],
    ) -> None:
        self.engine, self.options = engine, options

        def facts() -> tuple[dict[str, Any], dict[str, Any]]:
            named = dict(zip(("query", "key", "value"), arrays, strict=True))
            self.options = given_options(options)
            backend = agreed(query=arrays[0], key=arrays[1], value=arrays[2])
            scores_shape(*arrays, self.options.get("sink"))
            same: dict[str, Any] = {
                "backend": backend.name,
                "layout": layout if isinstance(layout, str) else [[str(some) for some in its] for its in layout],
                **{f"option {name}": _told(value) for name, value in self.options.items()},
            }
            for name, x in named.items():
                shape = [*x.shape[:-2], "length", x.shape[-1]]
                same |= {f"the dtype of {name}": str(x.dtype), f"the shape of {name}": shape}
            return same, {"query": arrays[0].shape[-2], "key": arrays[1].shape[-2]}

        counts = agree(engine, facts)
        self.query, self.key, self.value = arrays
        self.backend = agreed(query=self.query)
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
        own = self.queries[self.engine.rank]
        rows = max((some[-1] + 1 for its in self.queries for some in its if len(some)), default=sum(map(len, own)))
        shape = (*self.query.shape[:-2], rows, sum(len(some) for its in self.keys for some in its))
        for name, term in (("mask", self.mask), ("bias", self.bias)):
            for each in () if term is None else term.walk():
                each.check(self.backend.xp, shape)
                check_aligned(name, each, offset, shape)

    def wants(self, rank: int, source: int) -> bool:
        """Whether some query of a rank may see some key of another."""
        return any(
            Part(rows, cols, self.offset).relation(self.backend.xp, self.mask) is not Relation.NONE
            for rows in self.queries[rank]
            for cols in self.keys[source]
        )

    def attend(self, key: Array, value: Array, source: int) -> list[AttentionState | None]:
        """Return the state of each range of this rank's queries over the keys of a rank; None over no keys."""
        found = []
        for rows, at in _places(self.queries[self.engine.rank]):
            total = None
            for cols, place in _places(self.keys[source]):
                state = self._part(
                    self.query[..., at, :], key[..., place, :], value[..., place, :], Part(rows, cols, self.offset)
                )
                total = self.merged(total, state)
            found.append(total)
        return found

    def _part(self, query: Array, key: Array, value: Array, part: Part) -> AttentionState | None:
        xp = self.backend.xp
        if part.relation(xp, self.mask) is Relation.NONE:
            return None
        options = {name: value for name, value in self.options.items() if name not in _BY_POSITION}
        return attention_state(
            query,
            key,
            value,
            mask=part.mask(xp, self.mask),
            bias=part.bias(self.bias),
            weight_dropout=part.dropout(self.options.get("weight_dropout")),
            query_offset=part.query_offset,
            **options,
        )

    def merged(self, a: AttentionState | None, b: AttentionState | None) -> AttentionState | None:
        """Return two states as one, in the dtype of lse; None is the state over no keys."""
        return b if a is None else a if b is None else states.merge(self.backend.xp, a, b)

    def finished(self, found: list[AttentionState | None], *, partial: bool = False) -> AttentionState:
        """Return the state of this rank's queries, in the dtype of the query; ``partial``: in that of lse, without the sink."""
        xp, sink, kept = self.backend.xp, None if partial else self.options.get("sink"), []
        wide = xp.float64 if self.query.dtype == xp.float64 else xp.float32
        narrow = wide if partial else self.query.dtype
        for rows, state in zip(self.queries[self.engine.rank], found, strict=True):
            shape = (*self.query.shape[:-2], len(rows))
            total = states.identity(xp, shape, self.value.shape[-1], dtype=wide, device=device_of(self.query))
            total = self.merged(total, state) or total
            if sink is not None:
                lse = xp.broadcast_to(xp.astype(sink, wide)[:, None], shape)
                total = states.merge(xp, total, AttentionState(xp.zeros_like(total.out), lse))
            kept.append(AttentionState(xp.astype(total.out, narrow, copy=False), total.lse))
        return states.concat_queries(xp, kept)


def _places(ranges: Ranges) -> list[tuple[range, slice]]:
    """Return each range of positions with the place of its elements in a rank's array."""
    ends = [0]
    for some in ranges:
        ends.append(ends[-1] + len(some))
    return [(some, slice(start, end)) for some, start, end in zip(ranges, ends, ends[1:], strict=False)]


def _told(value: Any) -> str:
    """Return what an option is, as far as ranks can compare it: arrays by shape and dtype."""
    if hasattr(value, "arrays"):
        return f"{type(value).__name__} {value.key or [(name, _told(x)) for name, x in value.arrays()]}"
    return f"{tuple(value.shape)} {value.dtype}" if hasattr(value, "dtype") else repr(value)
