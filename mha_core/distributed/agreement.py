"""Agreement of the ranks before anything is computed, and errors that are gathered from all of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, cast

from ..dispatch.errors import MhaError
from .engine import Engine
from .layout import Layout, Ranges, layout_of

T = TypeVar("T")


class RanksDiffer(MhaError, ValueError):
    """The ranks of a group were not called with the same arguments; the message names what differs, and on which rank."""


class RankFailed(MhaError, RuntimeError):
    """Another rank of the group raised an error, which the message contains."""


class GatheredErrors:
    """Calls functions on this rank. Their error is raised when all ranks have heard of it, so that none waits for ever.

    A rank that failed goes on sending what the others need, and computes nothing.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.error: Exception | None = None

    def call(self, function: Callable[..., T], *arguments: Any) -> T | None:
        """Return ``function(*arguments)``; None if it raises, or an earlier call did."""
        if self.error is None:
            try:
                return function(*arguments)
            except Exception as error:  # raised by ``gather``
                self.error = error
        return None

    def gather(self, value: Any = None) -> list[Any]:
        """Return the values of all ranks, by rank; JSON must be able to hold them.

        Raises this rank's error, or RankFailed with those of the others.
        """
        error = None if self.error is None else f"{type(self.error).__name__}: {self.error}"
        gathered = [json.loads(text) for text in self.engine.all_gather_text(json.dumps([error, value]))]
        if self.error is not None:
            raise self.error
        failed = [f"rank {rank}: {message}" for rank, (message, _) in enumerate(gathered) if message is not None]
        if failed:
            raise RankFailed("; ".join(failed))
        return [value for _, value in gathered]


def with_gathered_errors(engine: Engine, function: Callable[[], T]) -> T:
    """Return ``function()``, once all ranks have computed theirs. Raises its error, or RankFailed with that of another."""
    errors = GatheredErrors(engine)
    result = errors.call(function)
    errors.gather()
    return cast(T, result)


def agree(engine: Engine, facts: Callable[[], tuple[Mapping[str, Any], Mapping[str, int]]]) -> dict[str, list[int]]:
    """Compare the facts of all ranks; return lengths by name, one of each rank.

    ``facts`` checks the arguments of this rank, and returns what must be the same on all ranks, and lengths, which may differ.
    It must return nothing but numbers, strings, lists and dicts.

    Raises
    ------
    RanksDiffer
        On every rank, if the first differs.
    RankFailed
        If ``facts`` raises on another rank. On that rank, its own error is raised, once the others know.
    """
    errors = GatheredErrors(engine)
    shared, lengths = zip(*errors.gather(errors.call(facts)), strict=True)
    for name in dict.fromkeys(name for each in shared for name in each):
        values = [each.get(name, "missing") for each in shared]
        if any(value != values[0] for value in values):
            listed = ", ".join(f"{value} on rank {rank}" for rank, value in enumerate(values))
            raise RanksDiffer(f"{name} is not the same on all ranks: {listed}")
    return {name: [each[name] for each in lengths] for name in lengths[0]}


def agreed_ranges(name: str, layout: Layout, lengths: Sequence[int]) -> tuple[Ranges, ...]:
    """Return the ranges of positions of each rank. Raises RanksDiffer if arrays of these lengths do not fit the layout."""
    ranges = layout_of(layout, sum(lengths), len(lengths))
    for rank, (expected, length) in enumerate(zip((sum(map(len, each)) for each in ranges), lengths, strict=True)):
        if length != expected:
            raise RanksDiffer(
                f"{name} has {length} positions on rank {rank}, where the layout of {sum(lengths)} positions has {expected}"
            )
    return ranges
