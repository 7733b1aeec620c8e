"""What a public operation adds to its kernel: calls of operations whose kernels compute nothing."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from .timing import Work, loaded

OPERATIONS = ("attention", "attention, causal", "attention, state", "gelu", "linear", "layer_norm")


@dataclass(frozen=True)
class Dispatch:
    """An operation on arrays of 8 x 8, whose kernel returns its first argument, or a result that is made in advance."""

    operation: str

    def judge(self) -> Callable[[Any], None]:
        """Return a check of the answer, which is True if the kernel that computes nothing was chosen."""

        def check(answer: Any) -> None:
            assert answer is True, f"another kernel was chosen for {self.operation}"

        return check

    def ours(self, backend: str) -> Work:
        """Return the call of the operation, during which the kernels are registered."""
        import mha_core as mha

        xp = loaded(backend).xp
        x, w = xp.ones((1, 1, 8, 8), dtype=xp.float32), xp.ones((8, 8), dtype=xp.float32)
        calls: dict[str, Callable[[], Any]] = {
            "attention": lambda: mha.scaled_dot_product_attention(x, x, x),
            "attention, causal": lambda: mha.scaled_dot_product_attention(x, x, x, mask=mha.causal()),
            "attention, state": lambda: mha.attention_state(x, x, x),
            "gelu": lambda: mha.gelu(x),
            "linear": lambda: mha.linear(x, w),
            "layer_norm": lambda: mha.layer_norm(x),
        }
        call = calls[self.operation]
        with idle_kernels(backend):
            chosen = mha.explain(call).kernel == "idle"
        return Work(call, lambda _: chosen, mode=lambda: idle_kernels(backend))


@contextmanager
def idle_kernels(backend: str) -> Iterator[None]:
    """Register a plugin with kernels that compute nothing."""
    from mha_core.plugin import AttentionState, Kernel, hookimpl, register, unregister

    xp = loaded(backend).xp
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
    try:
        yield
    finally:
        unregister(plugin)
