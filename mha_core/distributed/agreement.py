"""How ranks agree before anything is computed, and hear of an error that another raises."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast

from ..dispatch.errors import MhaError
from .engine import Engine

T = TypeVar("T")


class RanksDiffer(MhaError, ValueError):
    """The ranks of a group were not called with the same arguments; the message names what differs, and on which rank."""


class RankFailed(MhaError, RuntimeError):
    """Another rank of the group raised an error, which the message contains."""


class Together:
    """Computes what belongs to this rank. Its error waits until all ranks can hear of it, so that none waits for ever.

    A rank that failed goes on sending what the others need, and computes nothing.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.error: Exception | None = None

    def __call__(self, function: Callable[..., T], *arguments: Any) -> T | None:
        """Return ``function(*arguments)``; None if it raises, now or before."""
        if self.error is None:
            try:
                return function(*arguments)
            except Exception as error:  # raised by ``told``
                self.error = error
        return None

    def told(self, what: Any = None) -> list[Any]:
        """Exchange what each rank says, which may be anything that JSON knows; return what all said, by rank.

        Raises this rank's error, or RankFailed with those of the others.
        """
        error = None if self.error is None else f"{type(self.error).__name__}: {self.error}"
        everyone = [json.loads(text) for text in self.engine.tell(json.dumps([error, what]))]
        if self.error is not None:
            raise self.error
        failed = [f"rank {rank}: {message}" for rank, (message, _) in enumerate(everyone) if message is not None]
        if failed:
            raise RankFailed("; ".join(failed))
        return [said for _, said in everyone]


def jointly(engine: Engine, function: Callable[[], T]) -> T:
    """Return ``function()``, once all ranks have computed theirs. Raises its error, or RankFailed with that of another."""
    together = Together(engine)
    found = together(function)
    together.told()
    return cast(T, found)


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
    together = Together(engine)
    everyone = together.told(together(facts))
    first = everyone[0][0]
    for name in dict.fromkeys(name for same, _ in everyone for name in same):
        values = [same.get(name, "missing") for same, _ in everyone]
        if any(value != first.get(name, "missing") for value in values):
            told = ", ".join(f"{value} on rank {rank}" for rank, value in enumerate(values))
            raise RanksDiffer(f"{name} is not the same on all ranks: {told}")
    return [own for _, own in everyone]
