"""Answers checked, then times taken in turns: medians of rounds, each contender once in each, the order turning."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from mha_core.bench.rounds import ratio

from .cases import Case, Comparison, Goal
from .target import Target

TURN = 0.02  # seconds of work between two readings of the clock, so that its start and the launch count for nothing
_WORSE = 2.0  # an answer may be so many times as far from float64 as the peer's: both round, in another order


@dataclass(frozen=True)
class Row:
    """One contender in one case. seconds: of a call, in each round. rate: operations or bytes per second, by the median.
    error: the root of the mean square distance from float64. Without seconds ``wrong`` says why."""

    case: str
    contender: str
    seconds: tuple[float, ...] = ()
    rate: float = 0.0
    unit: str = ""
    error: float = 0.0
    wrong: str = ""

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)


@dataclass(frozen=True)
class Verdict:
    """found: the ratio, or the part of the limit; None where one of the two has no time."""

    case: str
    goal: Goal
    found: float | None

    @property
    def is_met(self) -> bool | None:
        if self.found is None:
            return None
        return self.found <= self.goal.at if self.goal.beside else self.found >= self.goal.at


def measured(case: Case, target: Target, rounds: int) -> list[Row]:
    """A row for each contender."""
    comparison = case.problem.comparison(target)
    errors, wrong = _checked(comparison, case.peer, target)
    fit = {name: work for name, work in comparison.contenders.items() if name not in wrong}
    times = _times(fit, comparison.sets, target, rounds)
    return [
        Row(case.name, name, error=errors.get(name, 0.0), wrong=wrong[name])
        if name in wrong
        else Row(
            case.name,
            name,
            tuple(times[name]),
            comparison.work / statistics.median(times[name]),
            case.problem.unit,
            errors[name],
        )
        for name in comparison.contenders
    ]


def verdicts(case: Case, rows: list[Row], limits: dict[str, float]) -> Iterator[Verdict]:
    """Of each goal: ratios are medians of the rounds' ratios, so that a card that slows down is slower for both."""
    timed = {row.contender: row for row in rows if not row.wrong}
    for goal in case.goals:
        ours, other = timed.get(goal.contender), timed.get(goal.beside)
        found = None
        if ours and other:
            found = ratio(ours.seconds, other.seconds).median
        elif ours and not goal.beside:
            found = ours.rate / limits[ours.unit]
        yield Verdict(case.name, goal, found)


def limits(target: Target) -> dict[str, float]:
    """What the card can do at best, in this run: operations of a large product, bytes of a copy read and written."""
    import torch

    size, dtype = (256, torch.float32) if target.is_rehearsal else (8192, torch.bfloat16)
    a, b = (torch.randn(size, size, device=target.device).to(dtype) for _ in range(2))
    numbers = torch.empty(1 << (16 if target.is_rehearsal else 28), dtype=torch.float32, device=target.device)
    works = {"FLOP": lambda _: torch.matmul(a, b), "B": lambda _: numbers.clone()}
    times = _times(works, 1, target, 5)
    amounts = {"FLOP": 2.0 * size**3, "B": 2.0 * numbers.numel() * 4}
    return {unit: amounts[unit] / min(times[unit]) for unit in works}


def _checked(comparison: Comparison, peer: str, target: Target) -> tuple[dict[str, float], dict[str, str]]:
    """How far each answer is from the exact one, and which is too far, or was none."""
    errors, wrong = {}, {}
    for name, work in comparison.contenders.items():
        try:
            with target.demanded(name):
                found = comparison.sample(work(0))
        except Exception as error:  # a contender that fails leaves its row empty, with what it said, and ends nothing
            wrong[name] = f"{type(error).__name__}: {error}"
            continue
        errors[name] = float(np.sqrt(np.mean((found - comparison.exact) ** 2)))
    for name, error in errors.items():
        bound = _WORSE * errors.get(peer, 0.0) + 1e-6
        if not error <= bound:
            wrong[name] = f"its answer is {error:.3g} from float64, the peer's {errors.get(peer, float('nan')):.3g}"
    return errors, wrong


def _times(contenders: dict[str, Callable[[int], Any]], sets: int, target: Target, rounds: int) -> dict[str, list[float]]:
    """Seconds of a call in each round. Inputs take turns, so that a card's cache holds none of them when its turn comes."""

    def turn(name: str, calls: int) -> float:
        work = contenders[name]

        def run() -> None:
            for at in range(calls):
                work(at % sets)

        with target.demanded(
            name
        ):  # around a turn: for each call it takes Python a fourth of the time that a norm takes a card
            return target.clock(run) / calls

    calls = {}
    for name in contenders:
        turn(name, 2)  # what is compiled or chosen on first need
        calls[name] = max(1, int((0.001 if target.is_rehearsal else TURN) / max(turn(name, 2), 1e-7)))
    order, found = list(contenders), {name: [] for name in contenders}
    for at in range(rounds):
        for name in order[at % len(order) :] + order[: at % len(order)]:
            found[name].append(turn(name, calls[name]))
    return found
