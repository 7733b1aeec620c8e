"""The interface of caches of keys and values, and calls that leave caches as they were if they raise."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

from ..algebra.arrays import Array


class Cache(Protocol):
    """The interface of a cache of keys and values."""

    key: Array | None
    value: Array | None
    context: Array | None
    source: Mapping[str, Array | None]
    whole: int | None

    @property
    def length(self) -> int: ...
    def joined(self, key: Array, value: Array, source: Mapping[str, Array | None] | None = None) -> tuple[Array, Array]: ...
    def of_context(self, context: Array, source: Mapping[str, Array | None] | None = None) -> tuple[Array, Array] | None: ...


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
