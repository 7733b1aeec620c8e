"""One problem, a yardstick and others: answers checked, times taken, each in processes of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from .cases import Problem
from .contender import Contender, ContenderFailed
from .race import Effort, race, verified
from .work import Work


@dataclass(frozen=True)
class Entry:
    """Who takes part: ``build(*arguments)``, called in another process, is the work."""

    name: str
    build: Callable[..., Work]
    arguments: tuple[Any, ...]


def contest(
    problem: Problem, yardstick: Entry, entries: Sequence[Entry], effort: Effort
) -> tuple[dict[str, list[float]], dict[str, str]]:
    """Seconds per call by name, one number per round, and what is wrong with those that were not timed.

    Raises ContenderFailed and AssertionError for the yardstick's faults alone.

    A process keeps for life what it drew when it started, where its memory lies above all: NumPy's float32 exp2 takes 0.66 ns
    per element in one process of six, and 0.19 in the others. So all of them are started afresh for each part of the rounds.
    """
    judge = problem.judge()
    wrong: dict[str, str] = {}
    times: dict[str, list[float]] = {each.name: [] for each in (yardstick, *entries)}
    for part in effort.parts():
        right = [entry for entry in entries if entry.name not in wrong]
        if not right:
            break
        with ExitStack() as stack:
            # started together: loading the libraries is most of what a short case takes
            first, *others = (
                stack.enter_context(Contender(entry.name, entry.build, *entry.arguments)) for entry in (yardstick, *right)
            )
            verified(first, judge)
            wrong |= {each.name: fault for each in others if (fault := _fault(each, judge))}
            racing = [each for each in others if each.name not in wrong]
            for name, seconds in (race([first, *racing], part) if racing else {}).items():
                times[name] += seconds
    return {name: seconds for name, seconds in times.items() if name not in wrong}, wrong


def _fault(contender: Contender, judge: Callable[[Any], None]) -> str:
    """What is wrong with a contender's answer, or nothing."""
    try:
        verified(contender, judge)
    except (AssertionError, ContenderFailed) as error:
        return str(error)
    return ""
