"""On one thread, where times are steady and NumPy may be paired with any library in one process."""

from tree.bench.cases import CASES
from tree.bench.cost import cost

from .backends import BACKENDS, ready
from .timing import TIMEOUT, _Time, verified


class Time(_Time):
    def time_call(self, backend: str, case: str) -> None:
        super().time_call(backend, case)

    time_call.pretty_name = "time, one thread"


class Cost:
    """Time over that of plain NumPy, in turns with it; both answers are checked."""

    version = "1"
    timeout = TIMEOUT
    params = (BACKENDS, list(CASES))
    param_names = ("backend", "case")
    unit = "x"

    def setup(self, backend: str, case: str) -> None:
        ready(backend)
        self.plain = CASES[case].plain()
        self.ours = verified(CASES[case], backend, self.plain)

    def track_cost(self, backend: str, case: str) -> float:
        return cost(self.ours, self.plain)

    track_cost.pretty_name = "cost relative to plain NumPy"
