"""Memory that a call needs beyond its arguments: the growth of the process's peak."""

from __future__ import annotations

from ..probes.peak_memory import peak, reset_peak, trim
from .cases import Problem


def grown(problem: Problem, backend: str) -> int:
    """Return the bytes by which the peak grows in the first call, the answer included.

    Only the first call counts: memory that a library keeps for later calls does not raise the peak again. Call this in a
    process that has done nothing else.

    Raises AssertionError for a wrong answer, and NotImplementedError if the backend's arrays are not in host memory or the
    system cannot reset the peak of a process.
    """
    from .limits import HOST, device

    if device(backend).call() != HOST:
        raise NotImplementedError(f"arrays of {backend} are not in host memory")
    problem.small().ours(backend).call()  # load what the library and the kernels need on first use
    work = problem.ours(backend)
    trim()
    if not reset_peak():
        raise NotImplementedError("this system cannot reset the peak memory of a process")
    before = peak()
    answer = work.call()
    if work.wait is not None:
        work.wait()
    growth = peak() - before
    problem.judge()(work.read(answer))
    return growth
