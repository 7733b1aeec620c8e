"""Sharding, which layers take to attend over ranks: the group, the layout of positions, and the function that attends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

from ..algebra.arrays import Array, device_of, move_axis, pick
from ..algebra.parts import Positions
from ..dispatch.selection import check_floating
from ..ops.multi_head import Rotation
from ..ops.ranks import Ranks
from .agreement import GatheredErrors, agree, agreed_ranges, is_heard
from .attention import ring_attention, split_attention
from .engine import engine_of
from .layout import Layout, layout_json, places, positions_of
from .shards import shard, unshard

T = TypeVar("T")


class Sharding:
    """Sequences that are spread over the ranks of a group, as layers take it: ``layer(x, group=Sharding(group, "zigzag"))``.

    Each rank calls the layer with its part of x, and gets its part of the result. With a cache, each rank calls it with all of
    x, gets the whole result, and its cache holds every size-th position.

    Parameters
    ----------
    group, layout : as ``ring_attention``
    attend : function like ``ring_attention``, which is the default, or ``heads_attention``
    """

    def __init__(self, group: Any, layout: Layout = "contiguous", *, attend: Callable[..., Any] = ring_attention) -> None:
        self.engine, self.layout, self.attend = engine_of(group), layout, attend

    def shard(self, x: Array) -> Array:
        """Return this rank's part of an array (..., length, d), as ``shard``."""
        return shard(x, self.layout, group=self.engine)

    def unshard(self, x: Array) -> Array:
        """Return the whole array on all ranks, as ``unshard``."""
        return unshard(x, self.layout, group=self.engine)

    def attention(self, query: Array, key: Array, value: Array, **options: Any) -> Array:
        """Return attention of this rank's queries."""
        out: Array = self.attend(query, key, value, group=self.engine, layout=self.layout, **options).out
        return out

    def attention_to_cache(self, query: Array, key: Array, value: Array, **options: Any) -> Array:
        """Return attention of queries that all ranks know, to the keys in all ranks' caches."""
        return split_attention(query, key, value, group=self.engine, layout="striped", **options).out

    def cached(self, x: Array, start: int) -> Array:
        """Return the part of new positions (..., length, d) that this rank's cache holds; the first has position ``start``."""
        if self.engine.rank is None:
            raise TypeError("a cache cannot be spread over ranks that run one compiled program")
        return x[..., (self.engine.rank - start) % self.engine.size :: self.engine.size, :]

    def rotated(self, rotary: Rotation, x: Array, offset: int | Array) -> Array:
        """Return this rank's heads (..., heads, length, d), rotated at the positions that it holds."""
        xp = check_floating(x=x).xp
        lengths = agree(self.engine, lambda: ({"layout": layout_json(self.layout)}, {"x": x.shape[-2]}))["x"]
        positions = positions_of(self.engine, agreed_ranges("x", self.layout, lengths))
        parts = [_rotated(xp, rotary, pick(xp, x, place, -2), each, offset) for each, place in places(positions)]
        return parts[0] if len(parts) == 1 else xp.concat(parts, axis=-2)

    def together(self, function: Callable[[Ranks], T]) -> T:
        """Return ``function(ranks)``, once all ranks have computed theirs; ``ranks`` attends as this group.

        Raises the error of this rank, or RankFailed with those of the others, which all hear at their next exchange. It takes
        one small exchange at the end, however many layers the function calls.
        """
        errors = GatheredErrors(self.engine)
        result = errors.call(function, _Together(self))
        if errors.error is not None and is_heard(errors.error):
            raise errors.error
        errors.gather()
        return cast(T, result)


class _Together:
    """The group of a call that all ranks make together, for the layers in it."""

    def __init__(self, group: Sharding) -> None:
        self.attention, self.attention_to_cache = group.attention, group.attention_to_cache
        self.cached, self.rotated = group.cached, group.rotated

    def together(self, function: Callable[[Ranks], T]) -> T:
        return function(self)


def _rotated(xp: Any, rotary: Rotation, x: Array, positions: Positions, offset: int | Array) -> Array:
    """Return heads rotated at a range of positions."""
    if not isinstance(positions, range) or positions.step == 1:
        return rotary(x, offset + positions.start)
    if not isinstance(offset, int):
        raise ValueError(
            "query_offset is an array: rotary positions in steps need an int; take a layout of successive positions"
        )
    first = offset + positions.start
    each = xp.arange(first, first + len(positions) * positions.step, positions.step, device=device_of(x))
    single = move_axis(xp, x, -2, -x.ndim)[..., None, :]  # (length, ..., heads, 1, d): each position begins a sequence
    rotated = rotary(single, xp.reshape(each, (-1, *(1,) * (single.ndim - 4))))
    return move_axis(xp, rotated[..., 0, :], -x.ndim, -2)
