"""Where a series went up and stayed up, by asv's own step detection: of each series on one processor alone, never of a mean."""

from __future__ import annotations

from dataclasses import dataclass

from asv.step_detect import detect_regressions, detect_steps

from .series import Commit, Machine, Series

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


def regressions(series: Series, machine: Machine) -> list[Regression]:
    """Oldest first. A step that was made good later is none, and neither is another processor under the machine's name."""
    found: list[Regression] = []
    for processor in dict.fromkeys(machine.processors):
        alike = [value if here == processor else None for value, here in zip(series.values, machine.processors, strict=True)]
        _, _, steps = detect_regressions(detect_steps(alike), THRESHOLD)
        found += [
            Regression(series, machine.commits[good], machine.commits[bad], before, after)
            for good, bad, before, after in steps or []
        ]
    return sorted(found, key=lambda each: each.bad.place)
