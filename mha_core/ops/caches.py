"""The interface of caches of keys and values, and calls that leave caches as they were if they raise."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

from ..algebra.arrays import Array
from ..algebra.expressions import Mask
from ..algebra.masks import Band
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
    def joined(self, key: Array, value: Array, source: Mapping[str, Array | None] | None = None) -> tuple[Array, Array]: ...
    def of_context(self, context: Array, source: Mapping[str, Array | None] | None = None) -> tuple[Array, Array] | None: ...


def check_window(window: int, options: Options) -> None:
    """Raise ValueError if a call with these options may read positions that a cache of ``window`` positions has dropped."""
    mask, bias = options.get("mask"), options.get("bias")
    conjuncts = mask.conjuncts() if isinstance(mask, Mask) else [] if mask is None else [mask]
    if not any(isinstance(each, Band) and each.low is not None and each.low > -window for each in conjuncts):
        raise ValueError(
            f"the cache keeps the newest {window} positions, and the mask lets queries see older ones: expected "
            f"mask=mha.window({window - 1}, 0) or one that reaches less far back"
        )
    for name, reads_positions in (
        ("mask", not all(isinstance(each, Band) for each in conjuncts)),
        ("bias", bias is not None and not getattr(bias, "by_distance", False)),
        ("weight_dropout", options.get("weight_dropout") is not None),
    ):
        if reads_positions:
            raise ValueError(
                f"{name} depends on more than distances, and the cache drops positions: use a cache without window"
            )


@contextmanager
def unchanged_on_error(*caches: Any) -> Iterator[None]:
    """Restore caches if the block raises: each a cache, a tuple of caches, a cache with ``layers`` of such tuples, or None."""
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
