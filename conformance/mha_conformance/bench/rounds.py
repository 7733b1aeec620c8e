"""Time workers in rounds: each takes one turn per round.

Other work on the machine then slows all of them alike.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from .timing import calibrated
from .worker import Worker


@dataclass(frozen=True)
class Effort:
    """Limits on the time and number of measurements."""

    rounds: int = 21
    """Greatest number of rounds."""
    seconds: float = 12.0
    """Time limit for all rounds together: no further round starts after it, once `least` rounds are done."""
    least: int = 5
    """Least number of rounds."""
    sample: float = 0.02
    """Least seconds per turn. Samples of single short calls ranked backends wrongly."""
    processes: int = 3
    """Number of processes per contender, one after another; they share the rounds."""

    def shares(self) -> list[Effort]:
        """Return the share of each process; each has at least one round."""
        count = min(self.processes, self.rounds)
        return [
            replace(
                self,
                rounds=len(range(at, self.rounds, count)),
                seconds=self.seconds / count,
                least=math.ceil(self.least / count),
                processes=1,
            )
            for at in range(count)
        ]


QUICK = Effort(rounds=3, processes=1)


@dataclass(frozen=True)
class Ratio:
    """Time relative to another's: the median and the quartiles over the rounds."""

    median: float
    low: float
    high: float


Judge: TypeAlias = Callable[[Any], float | None]
"""Raises AssertionError for a wrong answer; returns how close another is to the exact one, where the problem defines that."""


def check_answer(worker: Worker, judge: Judge) -> float | None:
    """Return what ``judge`` says of the worker's answer.

    Raises AssertionError if it is wrong, WorkerFailed if there is none: wrong answers are not timed.
    """
    return judge(worker.answer())


def time_in_rounds(workers: Sequence[Worker], effort: Effort) -> dict[str, list[float]]:
    """Return seconds per call by worker name, one number per round; the order of turns is reversed in every other round."""
    calls = {each.name: calibrated(each.time, effort.sample) for each in workers}
    seconds: dict[str, list[float]] = {each.name: [] for each in workers}
    end = time.monotonic() + effort.seconds
    for done in range(effort.rounds):
        if done >= effort.least and time.monotonic() > end:
            break
        for each in workers if done % 2 else reversed(workers):
            seconds[each.name].append(each.time(calls[each.name]) / calls[each.name])
    return seconds


def ratio(seconds: Sequence[float], peer: Sequence[float]) -> Ratio:
    """Return the ratio of times measured in the same rounds, at least two of them."""
    ratios = [ours / theirs for ours, theirs in zip(seconds, peer, strict=True)]
    low, median, high = statistics.quantiles(ratios, n=4, method="inclusive")
    return Ratio(median, low, high)
