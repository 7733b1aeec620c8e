"""What an engine of communication does for attention, and how all ranks agree before anything is computed."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from ..algebra.arrays import Array
from ..dispatch.errors import MhaError

Shape = tuple[int, ...]


class Engine(Protocol):
    """A group of ranks that compute together. Every rank makes the same calls in the same order."""

    rank: int
    size: int

    def shift(self, arrays: Sequence[Array], like: Sequence[tuple[Shape, Array]]) -> Callable[[], list[Array]]:
        """Start to send arrays to the next rank; return a function that waits for those of the previous one.

        ``like`` holds, for each array that arrives, its shape and an array of its dtype and device. Either may be empty.
        """

    def all_gather(self, array: Array, shapes: Sequence[Shape]) -> list[Array]:
        """Return the array of each rank; ``shapes`` are theirs."""

    def tell(self, text: str) -> list[str]:
        """Return the texts of all ranks."""


class RanksDiffer(MhaError, ValueError):
    """The ranks of a group were not called with the same arguments; the message names what differs, and on which rank."""


class RankFailed(MhaError, RuntimeError):
    """Another rank of the group raised an error."""


def agree(engine: Engine, facts: Callable[[], tuple[Mapping[str, Any], Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """Compare what each rank says; return what belongs to each.

    ``facts`` checks the arguments of this rank, and returns what must be the same on all ranks, and what is this rank's own.
    It must hold nothing but numbers, strings, lists and dicts.

    Raises
    ------
    RanksDiffer
        On every rank, if the first differs.
    RankFailed
        If ``facts`` raises on another rank. On that rank, its own error is raised, once the others know.
    """
    error: Exception | None = None
    try:
        same, own = facts()
        said = json.dumps({"same": same, "own": own})
    except Exception as raised:
        error, said = raised, json.dumps({"error": f"{type(raised).__name__}: {raised}"})
    everyone = [json.loads(text) for text in engine.tell(said)]
    if error is not None:
        raise error
    failed = [(rank, its["error"]) for rank, its in enumerate(everyone) if "error" in its]
    if failed:
        raise RankFailed("; ".join(f"rank {rank}: {message}" for rank, message in failed))
    first = everyone[0]["same"]
    for name in dict.fromkeys(name for its in everyone for name in its["same"]):
        values = [its["same"].get(name, "missing") for its in everyone]
        if any(value != first.get(name, "missing") for value in values):
            told = ", ".join(f"{value} on rank {rank}" for rank, value in enumerate(values))
            raise RanksDiffer(f"{name} is not the same on all ranks: {told}")
    return [its["own"] for its in everyone]
