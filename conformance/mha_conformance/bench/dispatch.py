"""What a public operation adds to its kernel: the operation and the kernel alone, with kernels that compute nothing."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .timing import Work, loaded

if TYPE_CHECKING:
    from mha_core.shared import LoadedBackend

OPERATIONS = ("attention", "attention, causal", "attention, state", "gelu", "linear", "layer_norm")
Call = Callable[[], Any]


@dataclass(frozen=True)
class Dispatch:
    """An operation on arrays of 8 x 8, whose kernel returns its first argument, or a result that is made in advance."""

    operation: str
    limit = None

    def small(self) -> Dispatch:
        """Return this problem: it is short already."""
        return self

    def judge(self) -> Callable[[Any], None]:
        """Return a check of the answer, which is True if the kernel that computes nothing was chosen."""

        def check(answer: Any) -> None:
            assert answer is True, f"another kernel was chosen for {self.operation}"

        return check

    def ours(self, backend: str) -> Work:
        """Return the call of the operation, for which the kernels are registered."""
        import mha_core as mha

        with _registered(backend) as idle:
            call, _ = _calls(self.operation, loaded(backend), idle)
            chosen = mha.explain(call).kernel == "idle"
        return Work(call, lambda _: chosen, mode=lambda: _registered(backend))

    def plain(self) -> Work:
        """Return a call of a function that does nothing."""
        return Work(lambda: True, lambda answer: answer)


@contextmanager
def calls(operation: str, backend: LoadedBackend) -> Iterator[tuple[Call, Call]]:
    """Yield a call of the operation on small arrays, and one of its kernel with what it would receive."""
    with _registered(backend.record.name) as idle:
        yield _calls(operation, backend, idle)


@contextmanager
def _registered(backend: str) -> Iterator[Any]:
    """Register a plugin with kernels that compute nothing, and yield their module."""
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
        yield idle
    finally:
        unregister(plugin)


def _calls(operation: str, backend: LoadedBackend, idle: Any) -> tuple[Call, Call]:
    import mha_core as mha

    try:
        from mha_core.ops.attend import prepare
    except ImportError:  # an earlier commit, which is measured by the same cases
        from mha_core.ops.prepare import prepare  # type: ignore[import-not-found,no-redef]

    xp = backend.xp
    x, w = xp.ones((1, 1, 8, 8), dtype=xp.float32), xp.ones((8, 8), dtype=xp.float32)
    _, problem = prepare(x, x, x)
    pairs: dict[str, tuple[Call, Call]] = {
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
    return pairs[operation]
