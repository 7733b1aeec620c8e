"""The interface of caches of keys and values, and calls that leave caches as they were if they raise."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol

from ..algebra.arrays import Array, Namespace, device_of, integers, move_axis
from ..algebra.expressions import Mask, as_mask
from ..algebra.int8 import Rows
from ..algebra.masks import Band, key_lengths
from ..dispatch.context import dry
from ..dispatch.selection import backend_of
from .attention import scaled_dot_product_attention
from .options import Options


class Cache(Protocol):
    """The interface of a cache of keys and values."""

    key: Rows | None
    value: Rows | None
    context: Array | None
    source: Mapping[str, Array | None]
    whole: int | None
    window: int | None
    dtype: str | None
    capacity: int | None
    filled: Array | None

    @property
    def length(self) -> Any: ...
    def parts(self, shape: tuple[int, ...]) -> Sequence[Part]: ...
    def joined(self, key: Array, value: Array, source: Mapping[str, Array | None] | None = None) -> tuple[Rows, Rows]: ...
    def of_context(self, context: Array, source: Mapping[str, Array | None] | None = None) -> tuple[Rows, Rows] | None: ...


class Part(NamedTuple):
    """One sequence of a call: its cache, and its positions among those of the call."""

    cache: Cache
    rows: slice


def attended(q: Array, k: Array, v: Array, cache: Cache, source: Mapping[str, Array | None], options: Options) -> Array:
    """Return the attention of new queries to a cache, behind which their keys and values are written."""
    length, new = cache.length, k.shape[-2]
    keys, values = cache.joined(k, v, source)
    is_windowed = cache.window is not None
    offset = keys.shape[-2] - new if is_windowed else length  # among the keys that are left
    there: Options = {**options, "query_offset": offset}
    filled = None
    if not is_windowed and (not isinstance(length, int) or keys.shape[-2] != length + new):  # in compiled functions
        xp = backend_of({"query": q}).xp
        filled = xp.asarray(length + new, dtype=xp.arange(0).dtype, device=device_of(q))
        seen, mask = key_lengths(filled), options.get("mask")
        there["mask"] = seen if mask is None else as_mask(mask) & seen
    out = scaled_dot_product_attention(q, keys, values, **there)
    if filled is not None:
        out = xp.where(filled > keys.shape[-2], math.nan, out)
    if not dry.get():
        cache.key, cache.value, cache.context, cache.source = keys, values, None, source
        cache.whole, cache.filled = length + new if is_windowed else None, filled
    return out


def rotated(xp: Namespace, rotary: Callable[[Array, int | Array], Array], x: Array, parts: Sequence[Part]) -> Array:
    """Return heads (..., h, L, d) rotated at the positions that they will have in their sequences."""
    if len(parts) == 1:
        return rotary(x, parts[0].cache.length)
    positions = [part.cache.length + at for part in parts for at in range(part.rows.stop - part.rows.start)]
    each = move_axis(xp, x, -2, -3)[..., None, :]  # (L, h, 1, d): a batch of positions
    return move_axis(xp, rotary(each, integers(xp, positions, device_of(x)))[..., 0, :], -3, -2)


def check_positions(parts: Sequence[Part], options: Options) -> None:
    """Raise ValueError if options depend on positions that a cache drops, or that are one sequence's among several."""
    window = min((part.cache.window for part in parts if part.cache.window is not None), default=None)
    if window is None and len(parts) == 1:
        return
    mask, bias = options.get("mask"), options.get("bias")
    conjuncts = mask.conjuncts() if isinstance(mask, Mask) else [] if mask is None else [mask]
    if window is not None and not any(
        isinstance(each, Band) and each.low is not None and each.low > -window for each in conjuncts
    ):
        raise ValueError(
            f"the cache keeps the newest {window} positions, and the mask lets queries see older ones: expected "
            f"mask=mha.window({window - 1}, 0) or one that reaches less far back"
        )
    why, instead = "the cache drops positions", "a cache without window"
    if len(parts) > 1:
        why, instead = "the cache holds several sequences", "a KeyValueCache for each"
    for name, reads_positions in (
        ("mask", not all(isinstance(each, Band) for each in conjuncts)),
        ("bias", bias is not None and not getattr(bias, "by_distance", False)),
        ("weight_dropout", options.get("weight_dropout") is not None),
    ):
        if reads_positions:
            raise ValueError(f"{name} depends on more than distances, and {why}: use {instead}")


@contextmanager
def unchanged_on_error(*caches: Any) -> Iterator[None]:
    """Restore caches if the block raises: each a cache, a tuple of them, one with ``layers`` or ``sequences``, or None."""
    saved = [(cache, vars(cache).copy()) for cache in _holders(caches)]
    try:
        yield
    except BaseException:
        for cache, before in saved:
            vars(cache).update(before)
        raise


def _holders(cache: Any) -> Iterator[Any]:
    """Yield the objects that hold the state of a cache."""
    if isinstance(cache, tuple | list):
        for each in cache:
            yield from _holders(each)
    elif cache is not None:
        yield cache
        yield from _holders(getattr(cache, "layers", None))
        yield from _holders(getattr(cache, "sequences", None))
