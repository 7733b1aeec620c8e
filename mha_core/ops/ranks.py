"""The interface of sequences that are spread over ranks, as layers see it."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from ..algebra.arrays import Array
from .caches import unchanged_on_error

if TYPE_CHECKING:
    from .multi_head import Rotation

F = TypeVar("F", bound=Callable[..., Any])


class Ranks(Protocol):
    """The interface of sequences that are spread over ranks: ``mha_core.distributed.Sharding``."""

    def attention(self, query: Array, key: Array, value: Array, **options: Any) -> Array: ...
    def attention_to_cache(self, query: Array, key: Array, value: Array, **options: Any) -> Array: ...
    def cached(self, x: Array, start: int) -> Array: ...
    def rotated(self, rotary: Rotation, x: Array, offset: int | Array) -> Array: ...
    def together(self, function: Callable[[Ranks], Any]) -> Any: ...


def heard_by_ranks(function: F) -> F:
    """Let all ranks hear of an error that a function with the option ``group`` raises on one of them."""

    @wraps(function)
    def call(*arguments: Any, group: Any = None, **options: Any) -> Any:
        if not hasattr(group, "together"):
            return function(*arguments, group=group, **options)
        with unchanged_on_error(options.get("cache")):  # also if another rank failed
            return group.together(lambda ranks: function(*arguments, group=ranks, **options))

    return call  # type: ignore[return-value]
