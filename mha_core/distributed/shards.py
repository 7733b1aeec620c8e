"""A rank's part of an array along the length, and the whole array again."""

from __future__ import annotations

from ..algebra.arrays import Array, device_of
from ..dispatch.selection import agreed
from .engine import Engine, agree
from .layout import Layout, layout_of


def shard(x: Array, layout: Layout = "contiguous", *, group: Engine) -> Array:
    """Return this rank's part of an array (..., length, d), in the order of its ranges of positions.

    Raises as ``layout_of``.

    Examples
    --------
    ``shard(x, "zigzag", group=group)`` of 8 positions on rank 0 of 2 holds positions 0, 1, 6 and 7.
    """
    xp = agreed(x=x).xp
    own = layout_of(layout, x.shape[-2], group.size)[group.rank]
    parts = [x[..., some.start : some.stop : some.step, :] for some in own]
    return parts[0] if len(parts) == 1 else xp.concat(parts, axis=-2)


def unshard(x: Array, layout: Layout = "contiguous", *, group: Engine) -> Array:
    """Return the whole array on all ranks, from each rank's part (..., length of the part, d); the inverse of ``shard``.

    Raises RanksDiffer if shapes, besides the length, dtypes or layouts differ.
    """
    backend = agreed(x=x)
    told = layout if isinstance(layout, str) else [[str(some) for some in its] for its in layout]

    def facts() -> tuple[dict[str, object], dict[str, object]]:
        shape = [*x.shape[:-2], "length", x.shape[-1]]
        return {"backend": backend.name, "dtype": str(x.dtype), "shape": shape, "layout": told}, {"length": x.shape[-2]}

    lengths = [its["length"] for its in agree(group, facts)]
    ranges = layout_of(layout, sum(lengths), group.size)
    parts = group.all_gather(x, [(*x.shape[:-2], length, x.shape[-1]) for length in lengths])
    place = {position: at for at, position in enumerate(i for its in ranges for some in its for i in some)}
    xp, order = backend.xp, [place[position] for position in range(len(place))]
    whole = xp.concat(parts, axis=-2)
    return whole if order == sorted(order) else xp.take(whole, xp.asarray(order, device=device_of(x)), axis=-2)
