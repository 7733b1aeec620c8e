"""Base class of the time benchmarks, on any number of threads."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from functools import partial

from mha_conformance.bench.cases import ALL_CORES, CASES, Problem
from mha_conformance.bench.timing import Work, calibrated, timed

from .backends import BACKENDS, ready, skip_missing

TIMEOUT = 300.0  # seconds per process; JAX compiles once for each length of the texts
SAMPLE = 0.01  # seconds; shorter samples rank backends wrongly

CHECK = "MHA_BENCH_CHECK" in os.environ  # set by python -m tracking check


def sized(problems: Mapping[str, Problem]) -> dict[str, Problem]:
    """Return the problems; in a check, which asks whether each benchmark runs and is right, short ones of the same kind."""
    return {name: problem.small() if CHECK else problem for name, problem in problems.items()}


PROBLEMS = sized({**CASES, **ALL_CORES})


def verified(problem: Problem, backend: str, *others: Work) -> Work:
    """Return the work on a backend, after checking its answer and those of the other works against float64.

    Raises AssertionError for a wrong answer, NotImplementedError if this mha_core lacks the backend or the operation.
    """
    ready(backend)
    check = problem.judge()  # before loading the work: OpenBLAS's threads keep spinning afterwards
    with skip_missing():
        work = problem.ours(backend)
    for each in (work, *others):
        check(each.read(each.call()))
    return work


class _Time:
    """Seconds per call of a case on a backend."""

    version = "1"
    timeout = TIMEOUT
    params = (BACKENDS, list(CASES))
    param_names = ("backend", "case")
    rounds = 2
    repeat = (4, 10, 0.6)  # two rounds give at least eight samples: with fewer than seven, asv's test finds no difference
    warmup_time = 0.0  # the calibration warms up

    def setup(self, backend: str, case: str) -> None:
        """Prepare the work once, although asv calls this before each sample.

        asv times single calls of ``time_call``. Each makes several calls of the work, and the timer divides by their number.
        """
        if hasattr(self, "work"):
            return
        work = verified(PROBLEMS[case], backend)
        calls = self.calls = calibrated(partial(timed, work), SAMPLE)
        self.timer = lambda: time.perf_counter() / calls
        self.work = work

    def time_call(self, backend: str, case: str) -> None:
        timed(self.work, self.calls)
