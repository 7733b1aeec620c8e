"""A rank's part of an array along the length, and the whole array again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..algebra.arrays import Array, Namespace, device_of
from ..dispatch.selection import agreed
from .agreement import agree
from .engine import engine_of
from .layout import Layout, Ranges, layout_of, told_layout


def shard(x: Array, layout: Layout = "contiguous", *, group: Any) -> Array:
    """Return this rank's part of an array (..., length, d), in the order of its ranges of positions.

    ``group`` is as in ``ring_attention``. Raises as ``layout_of``.

    Examples
    --------
    ``shard(x, "zigzag", group=group)`` of 8 positions on rank 0 of 2 holds positions 0, 1, 6 and 7.
    """
    engine, xp = engine_of(group), agreed(x=x).xp
    if engine.rank is None:
        raise TypeError("shard: ranks that run one compiled program get their parts from its caller, such as jax.shard_map")
    own = layout_of(layout, x.shape[-2], engine.size)[engine.rank]
    parts = [x[..., some.start : some.stop : some.step, :] for some in own]
    return parts[0] if len(parts) == 1 else xp.concat(parts, axis=-2)


def unshard(x: Array, layout: Layout = "contiguous", *, group: Any) -> Array:
    """Return the whole array on all ranks, from each rank's part (..., length of the part, d); the inverse of ``shard``.

    Raises RanksDiffer if shapes, besides the length, dtypes or layouts differ.
    """
    engine = engine_of(group)

    def facts() -> tuple[dict[str, object], dict[str, object]]:
        shape = [*x.shape[:-2], "length", x.shape[-1]]
        same: dict[str, object] = {
            "backend": agreed(x=x).name,
            "dtype": str(x.dtype),
            "shape": shape,
            "layout": told_layout(layout),
        }
        return same, {"length": x.shape[-2]}

    lengths = [its["length"] for its in agree(engine, facts)]
    ranges = layout_of(layout, sum(lengths), engine.size)
    parts = engine.all_gather(x, [(*x.shape[:-2], length, x.shape[-1]) for length in lengths])
    return in_order(agreed(x=x).xp, parts, ranges)


def in_order(xp: Namespace, parts: Sequence[Array], ranges: Sequence[Ranges]) -> Array:
    """Return the parts of all ranks as one array, in the order of positions."""
    pieces = []
    for part, its in zip(parts, ranges, strict=True):
        end = 0
        for some in its:
            pieces.append((some, part[..., end : end + len(some), :]))
            end += len(some)
    pieces.sort(key=lambda piece: piece[0].start)
    whole = xp.concat([x for _, x in pieces], axis=-2)
    if all(some.step == 1 for some, _ in pieces):
        return whole
    order = [position for some, _ in pieces for position in some]
    place = sorted(range(len(order)), key=order.__getitem__)
    return xp.take(whole, xp.asarray(place, device=device_of(whole)), axis=-2)
