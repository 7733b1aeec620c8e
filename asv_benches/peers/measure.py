"""One case after another: processes started, answers checked, times taken, and what came of it as a row."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mha_core.bench.compare import Contender, compare
from mha_core.bench.rounds import Effort, Ratio, ratio

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
    """A row for each backend that the case takes. Raises WorkerFailed and AssertionError for the peer's faults alone."""
    entered = [name for name in backends if case.takes(name)]
    if not entered:
        return []
    peer = Contender(case.peer.name, case.peer.build, (case.problem,))
    ours = [Contender(name, case.ours, (case.problem, name)) for name in entered]
    times, wrong = compare(case.problem, peer, ours, effort)
    return [
        Row(case.name, case.peer.name, name, case.goals.get(name), wrong=wrong[name])
        if name in wrong
        else _row(case, name, times[name], times[peer.name], rates)
        for name in entered
    ]


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
