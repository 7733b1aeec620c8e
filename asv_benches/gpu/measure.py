"""Check the answers of all contenders, then time them in rounds, each once per round."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from mha_conformance.bench.rounds import Effort, ratio, time_in_rounds

from .cases import Case, Comparison
from .target import Target

TURN = 0.02  # seconds of work between two clock readings, so that starting the clock and the launch are negligible
_WORSE = 2.0  # greatest error of an answer relative to the peer's error: both round, in different order


@dataclass(frozen=True)
class Row:
    """The result of one contender in one case."""

    case: str
    contender: str
    seconds: tuple[float, ...] = ()
    """Time per call in each round; empty if nothing was timed."""
    rate: float = 0.0
    """Operations or bytes per second, from the median time."""
    unit: str = ""
    """Unit of the work: "FLOP" or "B"."""
    error: float = 0.0
    """Root mean square distance from float64."""
    wrong: str = ""
    """The reason why nothing was timed."""

    @property
    def median(self) -> float:
        """Median seconds per call."""
        return statistics.median(self.seconds)


def measured(case: Case, target: Target, rounds: int) -> list[Row]:
    """Return a row for each contender."""
    comparison = case.problem.comparison(target)
    errors, wrong = _checked(comparison, case.peer, target)
    fit = {name: work for name, work in comparison.contenders.items() if name not in wrong}
    times = _times(fit, comparison.sets, target, rounds)
    rows = []
    for name in comparison.contenders:
        if name in wrong:
            rows.append(Row(case.name, name, error=errors.get(name, 0.0), wrong=wrong[name]))
        else:
            rate = comparison.work / statistics.median(times[name])
            rows.append(Row(case.name, name, tuple(times[name]), rate, case.problem.unit, errors[name]))
    return rows


def verdicts(case: Case, rows: list[Row], limits: dict[str, float]) -> Iterator[dict[str, Any]]:
    """Yield each goal, with the ratio or the share of the limit that was measured, and whether it is met; None: not timed.

    A ratio is the median of the ratios of the rounds, so that a GPU that slows down affects both contenders alike.
    """
    timed = {row.contender: row for row in rows if not row.wrong}
    for goal in case.goals:
        ours, other = timed.get(goal.contender), timed.get(goal.beside)
        figure = met = None
        if ours and other:
            figure = ratio(ours.seconds, other.seconds).median
            met = figure <= goal.at
        elif ours and not goal.beside:
            figure = ours.rate / limits[ours.unit]
            met = figure >= goal.at
        yield {"case": case.name, "goal": asdict(goal), "found": figure, "met": met}


def limits(target: Target) -> dict[str, float]:
    """Measure the GPU's peak rates: operations per second of a large product, bytes per second read and written by a copy."""
    import torch

    size, dtype = (256, torch.float32) if target.is_rehearsal else (8192, torch.bfloat16)
    a, b = (torch.randn(size, size, device=target.device).to(dtype) for _ in range(2))
    numbers = torch.empty(1 << (16 if target.is_rehearsal else 28), dtype=torch.float32, device=target.device)
    works = {"FLOP": lambda _: torch.matmul(a, b), "B": lambda _: numbers.clone()}
    times = _times(works, 1, target, 5)
    amounts = {"FLOP": 2.0 * size**3, "B": 2.0 * numbers.numel() * 4}
    return {unit: amounts[unit] / min(times[unit]) for unit in works}


def _checked(comparison: Comparison, peer: str, target: Target) -> tuple[dict[str, float], dict[str, str]]:
    """Return the error of each answer, and what is wrong with those that are too far off or failed."""
    errors, wrong = {}, {}
    for name, work in comparison.contenders.items():
        try:
            with target.demanded(name):
                answer = comparison.sample(work(0))
        except Exception as error:  # its row shows the message; the other contenders go on
            wrong[name] = f"{type(error).__name__}: {error}"
            continue
        errors[name] = float(np.sqrt(np.mean((answer - comparison.exact) ** 2)))
    for name, error in errors.items():
        bound = _WORSE * errors.get(peer, 0.0) + 1e-6
        if not error <= bound:
            wrong[name] = f"its error relative to float64 is {error:.3g}, the peer's {errors.get(peer, float('nan')):.3g}"
    return errors, wrong


@dataclass(frozen=True)
class _Contender:
    """A contender's turns. Input sets take turns, so that the GPU's cache no longer contains the next one."""

    name: str
    work: Callable[[int], Any]
    sets: int
    target: Target

    def time(self, calls: int) -> float:
        def run() -> None:
            for at in range(calls):
                self.work(at % self.sets)

        # around the whole turn: around each call, it would take Python a fourth of the time that a norm takes the GPU
        with self.target.demanded(self.name):
            return self.target.clock(run)


def _times(contenders: dict[str, Callable[[int], Any]], sets: int, target: Target, rounds: int) -> dict[str, list[float]]:
    """Return seconds per call in each round."""
    turns = [_Contender(name, work, sets, target) for name, work in contenders.items()]
    for each in turns:
        each.time(2)  # compile and choose kernels before timing
    effort = Effort(rounds, seconds=math.inf, least=rounds, sample=0.001 if target.is_rehearsal else TURN)
    return time_in_rounds(turns, effort)
