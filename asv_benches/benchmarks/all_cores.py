"""Time of the main cases on all cores.

Each library is alone in its process: with several threads, NumPy's would slow down another's.
"""

from mha_conformance.bench import asv
from mha_conformance.bench.cases import ALL_CORES

from .backends import BACKENDS

MAIN = (
    "attention 1x8x2048x64, causal",
    "decode 1x8x1x64, 8192 keys",
    "encoder layer 8x128x512",
    "text encoder, 32 real texts",
)


class Time(asv.Time, backends=BACKENDS, cases=(*MAIN, *ALL_CORES)):
    """Seconds per call."""

    repeat = (2, 10, 0.6)  # two samples of a call that takes seconds, in each of the two processes

    def time_call(self, backend: str, case: str) -> None:
        super().time_call(backend, case)

    time_call.pretty_name = "time, all cores"
