"""Compare implementations of one problem with a baseline, each in its own processes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from .cases import Problem
from .rounds import Effort, check_answer, time_in_rounds
from .timing import Work
from .worker import Start, Worker, WorkerFailed


@dataclass(frozen=True)
class Contender:
    """An implementation to be timed."""

    name: str
    build: Callable[..., Work]
    """Function of a module that returns the work; called in another process."""
    arguments: tuple[Any, ...]
    """Arguments of `build`."""


def compare(
    problem: Problem, baseline: Contender, contenders: Sequence[Contender], effort: Effort, start: Start = Worker
) -> tuple[dict[str, list[float]], dict[str, str]]:
    """Return seconds per call by name, one number per round, and what is wrong with the contenders that were not timed.

    Raises WorkerFailed or AssertionError only if the baseline fails or its answer is wrong.

    The speed of a process depends on what is fixed when it starts, above all memory addresses: NumPy's float32 exp2 takes
    0.66 ns per element in one process of six, and 0.19 in the others. All processes are therefore restarted several times, and
    the rounds are divided among them.
    """
    judge = problem.judge()
    wrong: dict[str, str] = {}
    times: dict[str, list[float]] = {each.name: [] for each in (baseline, *contenders)}
    for share in effort.shares():
        remaining = [each for each in contenders if each.name not in wrong]
        if not remaining:
            break
        with ExitStack() as stack:
            # started together: a short case spends most of its time loading the libraries
            first, *others = (
                stack.enter_context(start(each.name, each.build, *each.arguments)) for each in (baseline, *remaining)
            )
            check_answer(first, judge)
            wrong |= {each.name: fault for each in others if (fault := _fault(each, judge))}
            correct = [each for each in others if each.name not in wrong]
            for name, seconds in (time_in_rounds([first, *correct], share) if correct else {}).items():
                times[name] += seconds
    return {name: seconds for name, seconds in times.items() if name not in wrong}, wrong


def _fault(worker: Worker, judge: Callable[[Any], None]) -> str:
    """Return what is wrong with a worker's answer, or an empty string."""
    try:
        check_answer(worker, judge)
    except (AssertionError, WorkerFailed) as error:
        return str(error)
    return ""
