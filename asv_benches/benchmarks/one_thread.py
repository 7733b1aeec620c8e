"""Time and cost of all cases on one thread.

On one thread times are stable, and NumPy can be timed in the same process as any other library.
"""

from mha_conformance.bench.cases import CASES
from mha_conformance.bench.cost import cost

from .backends import BACKENDS, ready
from .timing import CHECK, PROBLEMS, TIMEOUT, _Time, verified


class Time(_Time):
    """Seconds per call."""

    def time_call(self, backend: str, case: str) -> None:
        super().time_call(backend, case)

    time_call.pretty_name = "time, one thread"


class Cost:
    """Time divided by that of plain NumPy, timed in turns; both answers are checked."""

    version = "1"
    timeout = TIMEOUT
    params = (BACKENDS, list(CASES))
    param_names = ("backend", "case")
    unit = "x"

    def setup(self, backend: str, case: str) -> None:
        ready(backend)
        self.plain = PROBLEMS[case].plain()
        self.ours = verified(PROBLEMS[case], backend, self.plain)

    def track_cost(self, backend: str, case: str) -> float:
        return cost(self.ours, self.plain, seconds=0 if CHECK else 1)

    track_cost.pretty_name = "cost relative to plain NumPy"
