"""The interface of an engine of communication, and the conversion of groups that users pass to engines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from ..algebra.arrays import Array
from ..dispatch.kernels import imported
from ..dispatch.registry import registry

Shape = tuple[int, ...]


class Engine(Protocol):
    """A group of ranks that compute together. Every rank makes the same calls in the same order.

    Arrays may have any real dtype of their library, any size, also 0, and any strides. They arrive bit for bit, and what
    arrives from another rank has memory of its own. Texts may have any length.
    """

    rank: int | None
    """The number of this rank; None if all ranks run one compiled program, such as that of ``jax.shard_map``, which does not
    know it. Such an engine also has ``rank_range(ranges)``: this rank's range, of one for each rank, all of one length."""
    size: int

    def shift(self, arrays: Sequence[Array], like: Sequence[tuple[Shape, Array]]) -> Callable[[], list[Array]]:
        """Start to send arrays to the next rank; return a function that waits for those of the previous one.

        ``like`` holds, for each array that arrives, its shape and an array of its dtype and device. Either may be empty.
        The caller leaves the arrays unchanged until the function has returned. Several shifts may be on their way at once; they
        arrive in the order in which they were started.
        """

    def all_gather(self, array: Array, shapes: Sequence[Shape]) -> list[Array]:
        """Return the array of each rank, of these shapes."""

    def all_to_all(self, arrays: Sequence[Array], shapes: Sequence[Shape]) -> list[Array]:
        """Send an array to each rank; return those that the ranks sent to this one, of these shapes and the same dtype."""

    def all_gather_text(self, text: str) -> list[str]:
        """Return the text of each rank."""


VERBS = ("rank", "size", "shift", "all_gather", "all_to_all", "all_gather_text")


def engine_of(group: Any) -> Engine:
    """Return a group as an engine: itself if it is one, or what the plugin that knows its type makes of it.

    Raises TypeError for anything else, naming the engines that are installed.
    """
    if all(hasattr(group, verb) for verb in VERBS):
        return group
    records = [record for record, _ in registry().collectives.values()]
    for cls in type(group).__mro__:
        for record in records:
            if f"{cls.__module__}:{cls.__qualname__}" in record.types:
                return imported(record.load)(group)
    engines = "; ".join(f"{record.name}: {', '.join(record.types)}" for record in records) or "none"
    raise TypeError(
        f"group is {type(group).__name__}; expected a group of an installed engine ({engines}), "
        f"or an object with {', '.join(VERBS)}"
    )
