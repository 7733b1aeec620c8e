"""A rank's part of an array along the length, and the whole array again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..algebra.arrays import Array, Namespace, device_of, pick
from ..dispatch.selection import check_floating
from .agreement import GatheredErrors, agree, agreed_ranges
from .engine import engine_of
from .layout import Layout, Ranges, layout_json, layout_of, places


def shard(x: Array, layout: Layout = "contiguous", *, group: Any) -> Array:
    """Return this rank's part of an array (..., length, d), in the order of its ranges of positions.

    ``group`` is as in ``ring_attention``. Raises as ``layout_of``.

    Examples
    --------
    ``shard(x, "zigzag", group=group)`` of 8 positions on rank 0 of 2 holds positions 0, 1, 6 and 7.
    """
    engine, xp = engine_of(group), check_floating(x=x).xp
    if engine.rank is None:
        raise TypeError("shard: ranks that run one compiled program get their parts from its caller, such as jax.shard_map")
    return part_of(xp, x, layout_of(layout, x.shape[-2], engine.size)[engine.rank])


def unshard(x: Array, layout: Layout = "contiguous", *, group: Any) -> Array:
    """Return the whole array on all ranks, from each rank's part (..., length of the part, d); the inverse of ``shard``.

    Raises RanksDiffer if shapes, besides the length, dtypes or layouts differ, or lengths are not those of the layout.
    """
    engine = engine_of(group)

    def facts() -> tuple[dict[str, Any], dict[str, int]]:
        shape = [*x.shape[:-2], "length", x.shape[-1]]
        shared = {"backend": check_floating(x=x).name, "dtype": str(x.dtype), "shape": shape, "layout": layout_json(layout)}
        return shared, {"x": x.shape[-2]}

    lengths = agree(engine, facts)["x"]
    errors = GatheredErrors(engine)
    ranges = errors.call_again(agreed_ranges, "x", layout, lengths)
    parts = engine.all_gather(x, [(*x.shape[:-2], length, x.shape[-1]) for length in lengths])
    whole = errors.call(lambda: in_order(check_floating(x=x).xp, parts, ranges))
    return errors.alone(whole)


def part_of(xp: Namespace, x: Array, ranges: Ranges) -> Array:
    """Return the elements of an array (..., length, d) at ranges of positions; a view if there is one range."""
    parts = [pick(xp, x, each, -2) for each in ranges]
    return parts[0] if len(parts) == 1 else xp.concat(parts, axis=-2)


def in_order(xp: Namespace, parts: Sequence[Array], ranges: Sequence[Ranges]) -> Array:
    """Return the parts of all ranks as one array, in the order of positions."""
    pieces = [
        (positions, part[..., place.start : place.stop, :])
        for part, of_rank in zip(parts, ranges, strict=True)
        for positions, place in places(of_rank)
    ]
    pieces.sort(key=lambda piece: piece[0].start)
    whole = xp.concat([x for _, x in pieces], axis=-2)
    if all(positions.step == 1 for positions, _ in pieces):
        return whole
    order = [position for positions, _ in pieces for position in positions]
    indices = sorted(range(len(order)), key=order.__getitem__)
    return xp.take(whole, xp.asarray(indices, device=device_of(whole)), axis=-2)
