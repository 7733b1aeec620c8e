"""The interface of caches of keys and values, and calls that leave caches as they were if they raise."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol

from ..algebra.arrays import Array, Namespace, device_of, integers, move_axis
from ..algebra.expressions import Mask
from ..algebra.masks import Band
from ..dispatch.context import dry
from .attention import scaled_dot_product_attention
from .options import Options


class Cache(Protocol):
    """The interface of a cache of keys and values."""

    key: Array | None
    value: Array | None
    context: Array | None
    source: Mapping[str, Array | None]
    whole: int | None
    window: int | None

    @property
    def length(self) -> int: ...
    def parts(self, shape: tuple[int, ...]) -> Sequence[Part]: ...
    def joined(self, key: Array, value: Array, source: Mapping[str, Array | None] | None = None) -> tuple[Array, Array]: ...
    def of_context(self, context: Array, source: Mapping[str, Array | None] | None = None) -> tuple[Array, Array] | None: ...


class Part(NamedTuple):
    """One sequence of a call: its cache, and its positions among those of the call."""

    cache: Cache
    rows: slice


def attended(q: Array, k: Array, v: Array, cache: Cache, source: Mapping[str, Array | None], options: Options) -> Array:
    """Return the attention of new queries to a cache, behind which their keys and values are written."""
    length, new = cache.length, k.shape[-2]
    k, v = cache.joined(k, v, source)
    is_windowed = cache.window is not None
    offset = k.shape[-2] - new if is_windowed else length  # among the keys that are left
    there: Options = {**options, "query_offset": offset}
    out = scaled_dot_product_attention(q, k, v, **there)
    if not dry.get():
        cache.key, cache.value, cache.context, cache.source = k, v, None, source
        cache.whole = length + new if is_windowed else None
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
