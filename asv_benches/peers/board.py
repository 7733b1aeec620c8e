"""One case after another: processes started, answers checked, times taken, and what came of it as a row."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from mha_core.bench.contender import Contender, ContenderFailed
from mha_core.bench.race import Effort, Ratio, race, ratio, verified

from .cases import Case


@dataclass(frozen=True)
class Row:
    """One backend in one case. seconds: medians per call. reached: the part of the limit, where there is one.
    rounds: of all processes.

    Without a ratio nothing was measured, and ``wrong`` says why.
    """

    case: str
    peer: str
    backend: str
    goal: float | None
    ratio: Ratio | None = None
    seconds: float | None = None
    peer_seconds: float | None = None
    reached: float | None = None
    of: str | None = None
    rounds: int = 0
    wrong: str = ""

    @property
    def verdict(self) -> str:
        """To two decimals, as the goals are given."""
        if self.ratio is None:
            return "wrong"
        if self.goal is None:
            return ""
        return "met" if round(self.ratio.median, 2) <= self.goal else f"missed by {self.ratio.median / self.goal - 1:.0%}"


def measured(case: Case, backends: Sequence[str], effort: Effort, rates: Mapping[str, float]) -> list[Row]:
    """A row for each backend that the case takes. Raises ContenderFailed and AssertionError for the peer's faults alone.

    A process keeps for life what it drew when it started, where its memory lies above all: NumPy's float32 exp2 takes 0.66 ns
    per element in one process of six, and 0.19 in the others. So all of them are started afresh for each part of the rounds.
    """
    entered = [name for name in backends if case.takes(name)]
    if not entered:
        return []
    judge = case.problem.judge()
    wrong = dict.fromkeys(entered, "")
    times: dict[str, list[float]] = {name: [] for name in (case.peer.name, *entered)}
    for part in effort.parts():
        right = [name for name in entered if not wrong[name]]
        if not right:
            break
        with ExitStack() as stack:
            # started together: loading the libraries is most of what a short case takes
            peer = stack.enter_context(Contender(case.peer.name, case.peer.build, case.problem))
            others = [stack.enter_context(Contender(name, case.ours, case.problem, name)) for name in right]
            verified(peer, judge)
            wrong |= {each.name: _fault(each, judge) for each in others}
            racing = [each for each in others if not wrong[each.name]]
            for name, seconds in (race([peer, *racing], part) if racing else {}).items():
                times[name] += seconds
    return [
        Row(case.name, case.peer.name, name, case.goals.get(name), wrong=wrong[name])
        if wrong[name]
        else _row(case, name, times[name], times[case.peer.name], rates)
        for name in entered
    ]


def _fault(contender: Contender, judge: Callable[[Any], None]) -> str:
    """What is wrong with a contender's answer, or nothing."""
    try:
        verified(contender, judge)
    except (AssertionError, ContenderFailed) as error:
        return str(error)
    return ""


def _row(case: Case, name: str, seconds: Sequence[float], peer: Sequence[float], rates: Mapping[str, float]) -> Row:
    limit, median = case.problem.limit, statistics.median(seconds)
    return Row(
        case.name,
        case.peer.name,
        name,
        case.goals.get(name),
        ratio(seconds, peer),
        median,
        statistics.median(peer),
        None if limit is None else limit.amount / median / rates[limit.kind],
        None if limit is None else limit.kind,
        len(seconds),
    )
