"""How a case is timed, whatever the number of threads."""

from __future__ import annotations

import time
from functools import partial

from tree.bench.cases import CASES, Problem
from tree.bench.timing import Work, calibrated, timed

from .backends import BACKENDS, ready, skip_missing

TIMEOUT = 300.0  # seconds, of one process; JAX compiles for each length of the texts
SAMPLE = 0.01  # seconds; shorter samples rank backends wrongly


def verified(problem: Problem, backend: str, *others: Work) -> Work:
    """The work on a backend, its answer and those of the others checked against float64.

    Raises AssertionError, and NotImplementedError where there is no such backend, or nothing of the kind in this mha_core.
    """
    ready(backend)
    check = problem.judge()  # first: OpenBLAS's threads spin on after it, beside whatever comes next
    with skip_missing():
        work = problem.ours(backend)
    for each in (work, *others):
        check(each.read(each.call()))
    return work


class _Time:
    version = "1"
    timeout = TIMEOUT
    params = (BACKENDS, list(CASES))
    param_names = ("backend", "case")
    rounds = 2
    repeat = (4, 10, 0.6)  # by two rounds eight: below seven asv's statistics cannot tell any two commits apart
    warmup_time = 0.0  # calibrating is that

    def setup(self, backend: str, case: str) -> None:
        """Once, though asv comes before each sample. It times single calls: time_call makes several, and the clock knows."""
        if hasattr(self, "work"):
            return
        work = verified(CASES[case], backend)
        calls = self.calls = calibrated(partial(timed, work), SAMPLE)
        self.timer = lambda: time.perf_counter() / calls
        self.work = work

    def time_call(self, backend: str, case: str) -> None:
        timed(self.work, self.calls)
