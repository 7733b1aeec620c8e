"""Time the backends and the peer of one case, and return the results as rows."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from mha_conformance.bench.compare import Contender, compare
from mha_conformance.bench.limits import MATRIX
from mha_conformance.bench.rounds import Effort, Ratio, ratio

from . import native
from .cases import Case


@dataclass(frozen=True)
class Row:
    """The result of one backend in one case."""

    case: str
    peer: str
    backend: str
    goal: float | None
    """Greatest ratio that meets the goal, at least that at the machine's rate of products; None if there is no goal."""
    ratio: Ratio | None = None
    """Time relative to the peer's; None if nothing was measured."""
    seconds: float | None = None
    """Median time per call."""
    peer_seconds: float | None = None
    """The peer's median time per call."""
    reached: float | None = None
    """Share of the machine's limit; None if no limit applies."""
    of: str | None = None
    """Kind of the limit: MATRIX or COPY."""
    rounds: int = 0
    """Number of rounds in all processes together."""
    wrong: str = ""
    """The reason why nothing was measured."""
    cosine: float | None = None
    """Of vectors: the smallest cosine to the exact ones."""
    peer_cosine: float | None = None
    """The same of the peer's vectors."""

    @property
    def verdict(self) -> str:
        """In words, if the goal is met, judged to two decimals, as goals are given."""
        if self.ratio is None:
            return "wrong"
        if self.goal is None:
            return ""
        return "met" if round(self.ratio.median, 2) <= self.goal else f"missed by {self.ratio.median / self.goal - 1:.0%}"


def _is_float32(problem: Any) -> bool:
    """Return whether the rate of float32 products limits a problem; products of bfloat16 and int8 may be faster."""
    return getattr(problem, "dtype", "float32") == "float32" and getattr(problem, "weights", None) is None


def measured(case: Case, backends: Sequence[str], effort: Effort, rates: Mapping[str, float]) -> list[Row]:
    """Return a row for each backend that the case takes.

    Raises WorkerFailed or AssertionError only if the peer fails or its answer is wrong.
    """
    taken = [name for name in backends if case.takes(name)]
    if not taken:
        return []
    peer = Contender(case.peer.name, case.peer.build, (case.problem,), case.peer.judged_as)
    ours = [Contender(name, native.work, (case.ours or type(case.problem).ours, case.problem, name)) for name in taken]
    compared = compare(case.problem, peer, ours, effort)
    times, cosines = compared.seconds, compared.closeness
    limit, rows = case.problem.limit, []
    for name in taken:
        row, goal = partial(Row, case.name, case.peer.name, name), case.goals.get(name)
        if name in compared.wrong:
            rows.append(row(goal, wrong=compared.wrong[name]))
            continue
        seconds, peer_seconds = statistics.median(times[name]), statistics.median(times[peer.name])
        reached, of = (None, None) if limit is None else (limit.amount / seconds / rates[limit.kind], limit.kind)
        if goal is not None and limit is not None and of == MATRIX and _is_float32(case.problem):
            goal = max(goal, limit.amount / rates[MATRIX] / peer_seconds)
        figures = goal, ratio(times[name], times[peer.name]), seconds, peer_seconds, reached, of, len(times[name])
        rows.append(row(*figures, cosine=cosines[name], peer_cosine=cosines[peer.name]))
    return rows
