"""Changes: where a line of values rose or fell and stayed so, found by ruptures.

Each line is judged alone, and the values of each processor separately; nothing is averaged over backends.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import ruptures

from .repository import Commit, Refused
from .series import History, Machine, Series


@dataclass(frozen=True)
class Rule:
    """How the values of a unit are judged."""

    tolerance: float
    """Least change that counts, relative to the level before."""
    enough: int
    """Number of values on one processor from which a line is judged."""
    smallest: float = 0.0
    """Least change that counts, in the unit."""
    noisy: bool = True
    """False if every difference is real, so that the line's own noise is not estimated."""


RULES = {
    "instructions": Rule(0.01, 2, noisy=False),
    "cycles": Rule(0.10, 2, noisy=False),  # memory that lies elsewhere changed equal code by up to 7.9%
    "bytes": Rule(0.10, 3, smallest=1e6),
}
TIMES = Rule(0.05, 6)
"""The rule of all other units: times and their ratios."""

FEW = 4
"""Number of differences between neighbours from which a line's noise is estimated."""

NOISES = 4.0
"""A change counts from so many standard deviations of the line's own noise."""


@dataclass(frozen=True)
class Change:
    """A lasting change of a line."""

    series: Series
    good: Commit
    """Last measured commit at the level `before`."""
    bad: Commit
    """First measured commit at another level."""
    before: float
    after: float
    """The level since that is nearest to the one before."""

    @property
    def worse(self) -> bool:
        """True if the values rose: lower is better everywhere."""
        return self.after > self.before

    @property
    def factor(self) -> float | None:
        """Level after divided by level before; None if the level before is not above zero."""
        return self.after / self.before if self.before > 0 else None

    @property
    def suspects(self) -> int:
        """Number of commits that may have caused it: `bad`, and those before it that changed code and were not measured."""
        return self.bad.place - self.good.place


@dataclass(frozen=True)
class Judged:
    """What is said of a line: its lasting changes, oldest first, or why there is no verdict."""

    changes: tuple[Change, ...] = ()
    why_not: str = ""


def latest(series: Series, machine: Machine) -> Change | None:
    """Return the newest commit's value against the one before on the same processor; None if there are no such values."""
    last, processor = len(machine.commits) - 1, machine.processors_of(series.benchmark)[-1]
    places = _values_on(series, machine, processor)
    if not processor or len(places) < 2 or places[-1] != last:
        return None
    before, after = (series.values[at] or 0.0 for at in places[-2:])
    return Change(series, machine.commits[places[-2]], machine.commits[last], before, after)


def newest(history: History, case: str, backend: str) -> tuple[str, str]:
    """Return the two commits between which the instructions of a case changed last. Raises Refused if they did not."""
    for machine in history.machines:
        for series in machine.series:
            wanted = (series.case, series.backend, series.benchmark.unit) == (case, backend, "instructions")
            if wanted and (lasting := judged(series, machine).changes):
                return lasting[-1].good.hash, lasting[-1].bad.hash
    raise Refused(f"the history has no lasting change of {case!r} on {backend}; name a commit before the change by --good")


def beyond_rule(change: Change) -> bool:
    """Return True if a change is beyond the rule of its line, whatever the line's noise."""
    return _differ(change.before, change.after, rule(change.series), 0.0)


def rule(series: Series) -> Rule:
    """Return the rule by which a line is judged."""
    return RULES.get(series.benchmark.unit, TIMES)


def judged(series: Series, machine: Machine) -> Judged:
    """Judge a line, each known processor by itself."""
    known = {name for name in machine.processors_of(series.benchmark) if name}
    lines = [_values_on(series, machine, name) for name in sorted(known)]
    if not any(lines):
        return Judged(why_not="the processor is not known well enough")
    enough = rule(series).enough
    judgeable = [line for line in lines if len(line) >= enough]
    if not judgeable:
        most = max(map(len, lines))
        return Judged(why_not=f"{most} value{'s' if most != 1 else ''} on one processor; at least {enough} are needed")
    lasting = [change for line in judgeable for change in _changes(series, machine, line)]
    return Judged(tuple(sorted(lasting, key=lambda each: each.bad.place)))


def _values_on(series: Series, machine: Machine, processor: str) -> list[int]:
    """Return the indices of the values that were measured on a processor."""
    pairs = zip(series.values, machine.processors_of(series.benchmark), strict=True)
    return [at for at, (value, on) in enumerate(pairs) if value is not None and on == processor]


def _changes(series: Series, machine: Machine, places: Sequence[int]) -> list[Change]:
    """Return the lasting changes among the values at these places."""
    values = [series.values[at] or 0.0 for at in places]
    noise = _noise(values) if rule(series).noisy else 0.0
    levels = _levels(values, rule(series), noise)
    lasting, base = [], levels[0].value
    for at, (old, new) in enumerate(pairwise(levels)):
        past, later = ([level.value for level in part] for part in (levels[: at + 1], levels[at + 1 :]))
        # worse: above the best level since the last change, for good; better: below all levels before, for good
        base = min(base, old.value)
        before, after = (base, min(later)) if new.value > old.value else (min(past), max(later))
        if (after > before) == (new.value > old.value) and _differ(before, after, rule(series), noise):
            good, bad = (machine.commits[places[index]] for index in (new.start - 1, new.start))
            lasting.append(Change(series, good, bad, before, after))
            base = after
    return lasting


@dataclass(frozen=True)
class _Level:
    """Values that are alike, from an index on."""

    start: int
    value: float


def _levels(values: Sequence[float], rule: Rule, noise: float) -> list[_Level]:
    """Return the levels of a line: its best piecewise constant approximation, on a logarithmic scale."""
    logarithms = np.log(np.maximum(values, 0.0) + (rule.smallest or 1e-30))
    deviation = max(noise, rule.tolerance / NOISES)
    penalty = 2.0 * deviation**2 * math.log(max(2, len(values)))
    ends = ruptures.Pelt(model="l2", min_size=1, jump=1).fit(logarithms[:, None]).predict(pen=penalty)
    return [_Level(start, statistics.median(values[start:end])) for start, end in pairwise([0, *ends])]


def _noise(values: Sequence[float]) -> float:
    """Return the relative standard deviation of a line, by the median difference of neighbours, which ignores steps."""
    differences = [abs(after - before) / abs(before) for before, after in pairwise(values) if before]
    return 1.4826 * statistics.median(differences) / math.sqrt(2) if len(differences) >= FEW else 0.0


def _differ(before: float, after: float, rule: Rule, noise: float) -> bool:
    least = max(rule.tolerance, NOISES * noise) * abs(before)
    return abs(after - before) > max(least, rule.smallest)
