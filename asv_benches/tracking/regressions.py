"""Where a series went up and stayed up, by asv's own step detection: of each series alone, never of a mean."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from asv.step_detect import detect_regressions, detect_steps

from .series import Commit, Series

THRESHOLD = 0.05
"""A step counts from here on, relative to the level before it: asv's default."""


@dataclass(frozen=True)
class Regression:
    """`good` is the last measured commit at the level `before`, `bad` the first above it; `after` is the best level since."""

    series: Series
    good: Commit
    bad: Commit
    before: float
    after: float

    @property
    def factor(self) -> float | None:
        """None where the level before was not above zero."""
        return self.after / self.before if self.before > 0 else None

    @property
    def suspects(self) -> int:
        """So many commits are in question: those between that were not measured, and `bad`."""
        return self.bad.place - self.good.place


def regressions(series: Series, commits: Sequence[Commit]) -> list[Regression]:
    """Oldest first. A step that was made good later is none."""
    _, _, found = detect_regressions(detect_steps(series.values), THRESHOLD)
    return [Regression(series, commits[good], commits[bad], before, after) for good, bad, before, after in found or []]
