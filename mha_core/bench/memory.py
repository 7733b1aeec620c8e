"""How much memory a call takes beyond its arguments: by how much the peak of the process grows."""

from __future__ import annotations

from ..conformance.probes.peak_memory import peak, reset_peak, trim
from .cases import Problem


def grown(problem: Problem, backend: str) -> int:
    """Bytes, the answer's own among them; of the first call, for memory that is kept is not seen again.

    For a process that has done nothing else. Raises AssertionError for a wrong answer, NotImplementedError where the backend's
    arrays are not in the host's memory, or the system has no way to set the peak back.
    """
    from .limits import HOST, device

    if device(backend).call() != HOST:
        raise NotImplementedError(f"arrays of {backend} are not in the host's memory")
    problem.small().ours(backend).call()  # what the library and the kernels load on first use
    work = problem.ours(backend)
    trim()
    if not reset_peak():
        raise NotImplementedError("this system cannot set the peak of a process back")
    before = peak()
    answer = work.call()
    if work.wait is not None:
        work.wait()
    growth = peak() - before
    problem.judge()(work.read(answer))
    return growth
