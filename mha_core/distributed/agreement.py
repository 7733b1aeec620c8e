"""Agreement of the ranks before anything is computed, and errors that are gathered from all of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, cast

from ..dispatch.errors import MhaError
from .engine import Engine
from .layout import Layout, Ranges, layout_of

T = TypeVar("T")
E = TypeVar("E", bound=BaseException)


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
        self.error: BaseException | None = None

    def call(self, function: Callable[..., T], *arguments: Any) -> T | None:
        """Return ``function(*arguments)``; None if it raises, or an earlier call did."""
        if self.error is None:
            try:
                return function(*arguments)
            except BaseException as error:  # raised by ``gather``; KeyboardInterrupt too, for which the others would wait
                self.error = error
        return None

    def call_again(self, function: Callable[..., T], *arguments: Any) -> T:
        """Return ``function(*arguments)``, called once more if it raises: without the result this rank cannot send.

        For what follows from facts that are the same on all ranks: what raises twice raises on all of them.
        """
        result = self.call(function, *arguments)
        return function(*arguments) if result is None else result

    def alone(self, result: T | None) -> T:
        """Return a result of ``call``. Raises this rank's error, of which the others do not hear."""
        if self.error is not None:
            raise self.error
        return cast(T, result)

    def gather(self, value: Any = None) -> list[Any]:
        """Return the values of all ranks, by rank; JSON must be able to hold them.

        Raises this rank's error, or RankFailed with those of the others.
        """
        text = self.call(lambda: json.dumps([None, value]))
        if self.error is not None:
            text = json.dumps([f"{type(self.error).__name__}: {self.error}", None])
        assert text is not None
        try:
            gathered = [json.loads(each) for each in self.engine.all_gather_text(text)]
        except Exception as lost:
            if self.error is None:
                raise
            raise self.error from lost
        if self.error is not None:
            raise _heard(self.error)
        failed = [f"rank {rank}: {message}" for rank, (message, _) in enumerate(gathered) if message is not None]
        if failed:
            raise _heard(RankFailed("; ".join(failed)))
        return [value for _, value in gathered]


def _heard(error: E) -> E:
    """Mark an error of which all ranks have heard."""
    vars(error)["is_heard"] = True
    return error


def is_heard(error: BaseException) -> bool:
    """Return whether all ranks have heard of an error, and raise too."""
    return isinstance(error, RanksDiffer) or "is_heard" in vars(error)


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
    check_same(shared)
    return {name: [each[name] for each in lengths] for name in lengths[0]}


def check_same(facts: Sequence[Mapping[str, Any]]) -> None:
    """Raise RanksDiffer unless facts, one mapping of each rank, are the same on all ranks."""
    for name in dict.fromkeys(name for each in facts for name in each):
        values = [each.get(name, "missing") for each in facts]
        if any(value != values[0] for value in values):
            listed = ", ".join(f"{value} on rank {rank}" for rank, value in enumerate(values))
            raise RanksDiffer(f"{name} is not the same on all ranks: {listed}")


def agreed_ranges(name: str, layout: Layout, lengths: Sequence[int]) -> tuple[Ranges, ...]:
    """Return the ranges of positions of each rank. Raises RanksDiffer if arrays of these lengths do not fit the layout."""
    ranges = layout_of(layout, sum(lengths), len(lengths))
    for rank, (expected, length) in enumerate(zip((sum(map(len, each)) for each in ranges), lengths, strict=True)):
        if length != expected:
            raise RanksDiffer(
                f"{name} has {length} positions on rank {rank}, where the layout of {sum(lengths)} positions has {expected}"
            )
    return ranges
