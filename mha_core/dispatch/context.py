"""The caller's demands and watcher, as context variables; a new thread starts with neither."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

ALGEBRA = "algebra"
"""The name with which ``use_kernel`` demands the algebra instead of a kernel."""


class Demands(NamedTuple):
    """What ``use_backend`` and ``use_kernel`` demand; hashable, because it is part of the key of a plan."""

    backend: str | None = None
    kernels: tuple[tuple[str, str], ...] = ()
    """Pairs (operation, kernel), the innermost ``use_kernel`` last."""
    algebra_only: bool = False

    def kernel(self, op: str) -> str | None:
        """Return the kernel that the innermost ``use_kernel`` for this operation names."""
        return ALGEBRA if self.algebra_only else dict(self.kernels).get(op)


NO_DEMANDS = Demands()
demands: ContextVar[Demands] = ContextVar("mha_core.demands", default=NO_DEMANDS)
watcher: ContextVar[Callable[..., Any] | None] = ContextVar("mha_core.watcher", default=None)
"""The function that receives every dispatched operation instead of running it, for ``explain`` and ``verify``."""
dry: ContextVar[bool] = ContextVar("mha_core.dry", default=False)
"""Whether operations only check their arguments and choose kernels; caches must not change then."""


def demanding(**changes: Any) -> AbstractContextManager[None]:
    """Change the demands inside this context."""
    return _within(demands, demands.get()._replace(**changes))


def watched_by(watch: Callable[..., Any] | None) -> AbstractContextManager[None]:
    """Hand every dispatched operation in this context to ``watch(run)``; None removes a watcher."""
    return _within(watcher, watch)


def dry_run() -> AbstractContextManager[None]:
    """Make operations in this context only check their arguments and choose kernels."""
    return _within(dry, True)


@contextmanager
def _within(variable: ContextVar[Any], value: Any) -> Iterator[None]:
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)
