"""Regressions: where a series rose and stayed up, by asv's step detection.

Each series is examined alone, and the values of each processor separately; nothing is averaged over backends.
"""

from __future__ import annotations

from dataclasses import dataclass

from asv.step_detect import detect_regressions, detect_steps

from .series import Commit, Machine, Series

THRESHOLD = 0.05
"""Least step that counts, relative to the level before it: asv's default."""


@dataclass(frozen=True)
class Regression:
    """A lasting step up in a series."""

    series: Series
    good: Commit
    """Last measured commit at the level `before`."""
    bad: Commit
    """First measured commit above that level."""
    before: float
    after: float
    """Best level since."""

    @property
    def factor(self) -> float | None:
        """Level after divided by level before; None if the level before is not above zero."""
        return self.after / self.before if self.before > 0 else None

    @property
    def suspects(self) -> int:
        """Number of commits that may have caused it: `bad`, and the unmeasured ones before it."""
        return self.bad.place - self.good.place


def regressions(series: Series, machine: Machine) -> list[Regression]:
    """Return the regressions, oldest first. Steps that were undone later and changes of the processor do not count."""
    rises: list[Regression] = []
    for processor in dict.fromkeys(machine.processors):
        alike = [value if here == processor else None for value, here in zip(series.values, machine.processors, strict=True)]
        _, _, steps = detect_regressions(detect_steps(alike), THRESHOLD)
        rises += [
            Regression(series, machine.commits[good], machine.commits[bad], before, after)
            for good, bad, before, after in steps or []
        ]
    return sorted(rises, key=lambda each: each.bad.place)
