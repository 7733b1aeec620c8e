"""Random problems, judged one after another.

A failure has a note with a smaller problem that fails too, and the command that tries it again.
"""

from __future__ import annotations

from dataclasses import replace

from ..cases.problems import Limits
from .held import Judge
from .replay import DrawnProblem
from .shrink import shrink

_FEW = ((2, 2, 1, 5, 5, 4, 4), (2, 1, 2, 3, 6, 4, 2))
_FEW_LONG = ((2, 1, 2, 33, 33, 64, 64),)


def judge_problems(
    judge: Judge,
    count: int,
    *,
    check: str = "state",
    kernel: str | None = None,
    limits: Limits = Limits(),  # noqa: B008
) -> None:
    """Judge ``count`` random problems, or fewer and of few shapes in a quick run: some libraries compile for each new shape.

    kernel: the name of the kernel that is recorded meanwhile, for the command that tries a failure again.
    """
    if judge.quick and not limits.shapes:
        limits = replace(limits, shapes=_FEW_LONG if limits.longest > Limits.longest else _FEW)
    for seed in judge.rng.integers(2**32, size=judge.count(count)):
        drawn = DrawnProblem(check, judge.dtype, int(seed), limits)
        error = drawn.error(judge)
        if error is not None:
            error.add_note(_report(judge, drawn, kernel))
            raise error


def _report(judge: Judge, drawn: DrawnProblem, kernel: str | None) -> str:
    smallest, error = shrink(judge, drawn)
    said = f"\n{type(error).__name__}: {error}" if error is not None else ""
    return f"the smallest failing problem found: {smallest.problem()}{said}\ntry it again: {smallest.command(judge, kernel)}"
