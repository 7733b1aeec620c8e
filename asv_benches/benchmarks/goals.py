"""The cases of the goals on every installed backend, without their peers: time, and the memory that a process comes to."""

from __future__ import annotations

from functools import partial

from peers.cases import CASES, Case
from peers.contender import Work, timed
from peers.race import calibrated

from .backends import BACKENDS, ready

TIMEOUT = 900.0  # seconds; JAX compiles for each length of the texts, a second or so for each of the first hundred
SAMPLE = 0.01  # seconds; shorter samples rank backends wrongly
NAMES = list(dict.fromkeys(case.name for case in CASES))  # a case with a peer for each backend is in the table twice
LARGE = [
    "attention 8x8x512x64",
    "attention 1x8x8192x64, causal",
    "window of 256, 1x8x8192x64",
    "encoder layer 8x512x512",
    "text encoder",
]


class Time:
    """Checked against float64 before it is timed."""

    version = "1"
    timeout = TIMEOUT
    params = (BACKENDS, NAMES)
    param_names = ("backend", "case")

    def setup(self, backend: str, name: str) -> None:
        if hasattr(self, "work"):
            return
        case = _case(backend, name)
        check = case.problem.judge()  # first: OpenBLAS's threads spin on after it, beside whatever comes next
        work = case.ours(case.problem, backend)
        check(work.read(work.call()))
        self.number = calibrated(partial(timed, work), SAMPLE)
        self.work = work

    def time_call(self, backend: str, name: str) -> None:
        _finished(self.work)


class Memory:
    """Unchecked, for the exact answer would be most of it; each of these is checked where it is timed."""

    version = "1"
    timeout = TIMEOUT
    params = (BACKENDS, LARGE)
    param_names = ("backend", "case")

    def setup(self, backend: str, name: str) -> None:
        case = _case(backend, name)
        self.work = case.ours(case.problem, backend)

    def peakmem_call(self, backend: str, name: str) -> None:
        _finished(self.work)


def _case(backend: str, name: str) -> Case:
    """Raises NotImplementedError for what the goals do not ask of this backend, and where it is not available."""
    ready(backend)
    for case in CASES:
        if case.name == name and case.takes(backend):
            return case
    raise NotImplementedError(f"{name} is no goal of {backend}")


def _finished(work: Work) -> None:
    work.call()
    if work.wait is not None:
        work.wait()
