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
    judged_as: Problem | None = None
    """The problem whose bound its answer must meet; by default, that which is compared."""


@dataclass(frozen=True)
class Compared:
    """The results, by the names of contenders."""

    seconds: dict[str, list[float]]
    """Per call, one number per round."""
    wrong: dict[str, str]
    """What is wrong with those that were not timed."""
    closeness: dict[str, float | None]
    """How close the answers are, as the problem's judge says."""


def compare(
    problem: Problem, baseline: Contender | None, contenders: Sequence[Contender], effort: Effort, start: Start = Worker
) -> Compared:
    """Time contenders in rounds.

    Raises WorkerFailed or AssertionError only if the baseline fails or its answer is wrong; None is for no baseline.

    The speed of a process depends on what is fixed when it starts, above all memory addresses: NumPy's float32 exp2 takes
    0.66 ns per element in one process of six, and 0.19 in the others. All processes are therefore restarted several times, and
    the rounds are divided among them.
    """
    baselines = [baseline] if baseline else []
    judge = problem.judge()
    judges = {each.name: each.judged_as.judge() if each.judged_as else judge for each in (*baselines, *contenders)}
    compared = Compared({name: [] for name in judges}, {}, {})
    for share in effort.shares():
        remaining = [each for each in contenders if each.name not in compared.wrong]
        if not remaining:
            break
        with ExitStack() as stack:
            # started together: a short case spends most of its time loading the libraries
            workers = [stack.enter_context(start(each.name, each.build, *each.arguments)) for each in (*baselines, *remaining)]
            for at, worker in enumerate(workers):
                try:
                    compared.closeness[worker.name] = check_answer(worker, judges[worker.name])
                except (AssertionError, WorkerFailed) as error:
                    if at < len(baselines):
                        raise
                    compared.wrong[worker.name] = str(error)
            correct = [each for each in workers if each.name not in compared.wrong]
            for name, seconds in (time_in_rounds(correct, share) if len(correct) > len(baselines) else {}).items():
                compared.seconds[name] += seconds
    for name in compared.wrong:
        del compared.seconds[name]
    return compared
