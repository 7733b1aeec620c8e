"""Memory that a call needs beyond its arguments, on one thread: every thread adds scratch memory."""

from mha_conformance.bench.cases import CASES, LONG
from mha_conformance.bench.memory import grown

from .backends import BACKENDS, ready, skip_missing
from .timing import TIMEOUT, sized

PROBLEMS = sized({**LONG, **{name: problem for name, problem in CASES.items() if not name.startswith(("tiny", "import"))}})


class Memory:
    """Bytes by which the peak of the process grows."""

    version = "1"
    timeout = TIMEOUT
    params = (BACKENDS, list(PROBLEMS))
    param_names = ("backend", "case")
    unit = "bytes"

    def setup(self, backend: str, case: str) -> None:
        ready(backend)
        with skip_missing():  # here, because the call itself cannot be skipped
            PROBLEMS[case].small().ours(backend)

    def track_peak(self, backend: str, case: str) -> int:
        return grown(PROBLEMS[case], backend)

    track_peak.pretty_name = "peak memory beyond the arguments"
