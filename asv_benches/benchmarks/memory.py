"""What a call takes beyond its arguments, on one thread: each thread has scratch of its own."""

from tree.bench.cases import CASES, LONG
from tree.bench.memory import grown

from .backends import BACKENDS, ready, skip_missing
from .timing import TIMEOUT

PROBLEMS = {**LONG, **{name: problem for name, problem in CASES.items() if not name.startswith(("tiny", "import"))}}


class Memory:
    version = "1"
    timeout = TIMEOUT
    params = (BACKENDS, list(PROBLEMS))
    param_names = ("backend", "case")
    unit = "bytes"

    def setup(self, backend: str, case: str) -> None:
        ready(backend)
        with skip_missing():  # here, for in the call itself nothing can be left out
            PROBLEMS[case].small().ours(backend)

    def track_peak(self, backend: str, case: str) -> int:
        return grown(PROBLEMS[case], backend)

    track_peak.pretty_name = "peak memory beyond the arguments"
