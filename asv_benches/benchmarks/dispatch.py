"""Overhead of a public operation over its kernel.

The overhead is the microseconds spent on validation, preparation and the choice of the kernel. It is measured with kernels that
do nothing, in alternating batches of the operation and the kernel alone.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

from mha_conformance.bench.dispatch import OPERATIONS, calls

from .backends import BACKENDS, ready, skip_missing

BATCHES, CALLS = 31, 2000


class Dispatch:
    """Microseconds per call beyond the kernel."""

    version = "1"
    timeout = 300.0
    params = (BACKENDS, list(OPERATIONS))
    param_names = ("backend", "operation")
    unit = "us"

    def setup(self, backend: str, operation: str) -> None:
        import mha_core as mha

        self.loaded = ready(backend)
        with skip_missing():
            mha.explain  # noqa: B018

    def track_overhead(self, backend: str, operation: str) -> float:
        """Return the median difference between alternating batches."""
        import mha_core as mha

        with calls(operation, self.loaded) as (call, kernel):
            assert mha.explain(call).kernel == "idle"
            call()
            differences = [_batch(call) - _batch(kernel) for _ in range(BATCHES)]
        return statistics.median(differences) * 1e6

    track_overhead.pretty_name = "dispatch beyond the kernel"  # type: ignore[attr-defined]


def _batch(function: Callable[[], Any]) -> float:
    start = time.perf_counter()
    for _ in range(CALLS):
        function()
    return (time.perf_counter() - start) / CALLS
