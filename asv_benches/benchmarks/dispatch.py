"""Overhead of a public operation over its kernel.

The overhead is the microseconds spent on validation, preparation and the choice of the kernel. It is measured with kernels that
do nothing, in alternating batches of the operation and the kernel alone.
"""

from __future__ import annotations

import statistics
import sys
import time
import types
from collections.abc import Callable
from typing import Any

from .backends import BACKENDS, ready, skip_missing

OPERATIONS = ["attention", "attention, causal", "attention, state", "gelu", "linear", "layer_norm"]
BATCHES, CALLS = 31, 2000


class Dispatch:
    """Microseconds per call beyond the kernel."""

    version = "1"
    timeout = 300.0
    params = (BACKENDS, OPERATIONS)
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
        from mha_core.plugin import unregister

        plugin, idle = _idle_kernels(backend, self.loaded.xp)
        call, kernel = _call(operation, self.loaded, idle)
        try:
            assert mha.explain(call).kernel == "idle"
            call()
            differences = [_batch(call) - _batch(kernel) for _ in range(BATCHES)]
        finally:
            unregister(plugin)
        return statistics.median(differences) * 1e6

    track_overhead.pretty_name = "dispatch beyond the kernel"


def _batch(function: Callable[[], Any]) -> float:
    start = time.perf_counter()
    for _ in range(CALLS):
        function()
    return (time.perf_counter() - start) / CALLS


def _idle_kernels(backend: str, xp: Any) -> tuple[Any, Any]:
    """Register a plugin with kernels that compute nothing; return the plugin and the module of the kernels."""
    from mha_core.plugin import AttentionState, Kernel, hookimpl, register

    x = xp.zeros((1, 1, 8, 8), dtype=xp.float32)
    answer = AttentionState(x, x[..., 0])
    idle = types.ModuleType("idle_kernels")
    idle.attention = lambda problem: answer  # type: ignore[attr-defined]
    idle.first = lambda x, *arrays, **options: x  # type: ignore[attr-defined]
    sys.modules["idle_kernels"] = idle

    class Plugin:
        @hookimpl
        def mha_kernels(self):  # type: ignore[no-untyped-def]
            yield Kernel(backend, "attention", "idle", 1, "idle_kernels:attention", 1000, frozenset({"lse", "causal"}))
            for op in ("gelu", "linear", "layer_norm"):
                yield Kernel(backend, op, "idle", 1, "idle_kernels:first", 1000)

    plugin = Plugin()
    register(plugin)
    return plugin, idle


def _call(operation: str, loaded: Any, idle: Any) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """Return two functions: one calls the operation on small arrays, the other calls its kernel with what it would receive."""
    import mha_core as mha

    try:
        from mha_core.ops.attend import prepare
    except ImportError:  # an earlier commit, which is measured by the same cases
        from mha_core.ops.prepare import prepare  # type: ignore[import-not-found,no-redef]

    xp = loaded.xp
    x, w = xp.ones((1, 1, 8, 8), dtype=xp.float32), xp.ones((8, 8), dtype=xp.float32)
    _, problem = prepare(x, x, x)
    calls: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
        "attention": (lambda: mha.scaled_dot_product_attention(x, x, x), lambda: idle.attention(problem)),
        "attention, causal": (
            lambda: mha.scaled_dot_product_attention(x, x, x, mask=mha.causal()),
            lambda: idle.attention(problem),
        ),
        "attention, state": (lambda: mha.attention_state(x, x, x), lambda: idle.attention(problem)),
        "gelu": (lambda: mha.gelu(x), lambda: idle.first(x, approximate="none")),
        "linear": (lambda: mha.linear(x, w), lambda: idle.first(x, w, None)),
        "layer_norm": (lambda: mha.layer_norm(x), lambda: idle.first(x, None, None, eps=1e-5)),
    }
    return calls[operation]
