"""Contenders timed in lock-step: in every round each of them once, so that whatever else the machine does meets all alike."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from .contender import Contender

SAMPLE = 0.02  # seconds; samples of single short calls ranked backends wrongly
REST = 0.03  # seconds before each sample: OpenBLAS's threads, which spin after the last one, are asleep by then
LEAST = 5  # rounds, however long they take


@dataclass(frozen=True)
class Effort:
    """How long to measure: at most so many rounds, and after the fewest of them at most so many seconds."""

    rounds: int = 21
    seconds: float = 12.0
    least: int = LEAST


QUICK = Effort(rounds=3, seconds=0.0, least=3)


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
    calls = {each.name: calibrated(each) for each in contenders}
    seconds: dict[str, list[float]] = {each.name: [] for each in contenders}
    end = time.monotonic() + effort.seconds
    for done in range(effort.rounds):
        if done >= effort.least and time.monotonic() > end:
            break
        for each in contenders if done % 2 else reversed(contenders):
            time.sleep(REST)
            seconds[each.name].append(each.time(calls[each.name]) / calls[each.name])
    return seconds


def calibrated(contender: Contender) -> int:
    """How many calls make a sample."""
    calls = 1
    while (seconds := contender.time(calls)) < SAMPLE:
        calls = max(2 * calls, math.ceil(calls * SAMPLE / seconds))
    return calls


def ratio(seconds: Sequence[float], peer: Sequence[float]) -> Ratio:
    """Of the times of the same rounds, two or more."""
    ratios = [ours / theirs for ours, theirs in zip(seconds, peer, strict=True)]
    low, median, high = statistics.quantiles(ratios, n=4, method="inclusive")
    return Ratio(median, low, high)
