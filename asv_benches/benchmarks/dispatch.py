"""Overhead of a public operation over its kernel.

The overhead is the microseconds spent on validation, preparation and the choice of the kernel. It is measured with kernels that
do nothing, in alternating batches of the operation and the kernel alone.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

from mha_conformance.bench import dispatch

from .backends import BACKENDS, ready, skip_missing

BATCHES, CALLS = 31, 2000


class Dispatch:
    """Microseconds per call beyond the kernel."""

    version = "1"
    timeout = 300.0
    params = (BACKENDS, list(dispatch.OPERATIONS))
    param_names = ("backend", "operation")
    unit = "us"

    def setup(self, backend: str, operation: str) -> None:
        import mha_core as mha

        self.xp = ready(backend).xp
        with skip_missing():
            mha.explain  # noqa: B018

    def track_overhead(self, backend: str, operation: str) -> float:
        """Return the median difference between alternating batches."""
        import mha_core as mha

        call = dispatch.Dispatch(operation).call(backend)
        with dispatch.idle_kernels(backend) as idle:
            kernel = _kernel(operation, self.xp, idle)
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


def _kernel(operation: str, xp: Any, idle: Any) -> Callable[[], Any]:
    """Return a call of the kernel with what it would receive from the operation."""
    try:
        from mha_core.ops.attend import prepare
    except ImportError:  # an earlier commit, which is measured by the same cases
        from mha_core.ops.prepare import prepare  # type: ignore[import-not-found,no-redef]

    x, w = xp.ones((1, 1, 8, 8), dtype=xp.float32), xp.ones((8, 8), dtype=xp.float32)
    if operation.startswith("attention"):
        _, problem = prepare(x, x, x)
        return lambda: idle.attention(problem)
    calls: dict[str, Callable[[], Any]] = {
        "gelu": lambda: idle.first(x, approximate="none"),
        "linear": lambda: idle.first(x, w, None),
        "layer_norm": lambda: idle.first(x, None, None, eps=1e-5),
    }
    return calls[operation]
