"""Contenders timed in lock-step: in every round each of them once, so that whatever else the machine does meets all alike."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from .contender import Contender
from .work import calibrated


@dataclass(frozen=True)
class Effort:
    """How to measure.

    rounds: at most so many; seconds: after which, in all, no round begins once the ``least`` of them are done.
    sample: seconds that a contender's turn takes at least. Samples of single short calls ranked backends wrongly.
    processes: how many each contender has, one after another; the rounds are divided among them.
    """

    rounds: int = 21
    seconds: float = 12.0
    least: int = 5
    sample: float = 0.02
    processes: int = 3

    def parts(self) -> list[Effort]:
        """What falls to each process; none is without a round."""
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
    """Time relative to the peer: the median over rounds, and the quartiles."""

    median: float
    low: float
    high: float


def verified(contender: Contender, judge: Callable[[Any], None]) -> None:
    """Raise AssertionError where its answer is wrong: a time for a wrong answer does not exist. Raises ContenderFailed."""
    judge(contender.answer())


def race(contenders: Sequence[Contender], effort: Effort) -> dict[str, list[float]]:
    """Seconds per call of each contender, by name, one number per round; the order of turns changes with each round."""
    calls = {each.name: calibrated(each.time, effort.sample) for each in contenders}
    seconds: dict[str, list[float]] = {each.name: [] for each in contenders}
    end = time.monotonic() + effort.seconds
    for done in range(effort.rounds):
        if done >= effort.least and time.monotonic() > end:
            break
        for each in contenders if done % 2 else reversed(contenders):
            seconds[each.name].append(each.time(calls[each.name]) / calls[each.name])
    return seconds


def ratio(seconds: Sequence[float], peer: Sequence[float]) -> Ratio:
    """Of the times of the same rounds, two or more."""
    ratios = [ours / theirs for ours, theirs in zip(seconds, peer, strict=True)]
    low, median, high = statistics.quantiles(ratios, n=4, method="inclusive")
    return Ratio(median, low, high)
