"""What the caller demands, per context: a new thread starts with none."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

ALGEBRA = "algebra"
"""What ``use_kernel`` calls the algebra itself, which is everyone's last resort."""


class Demands(NamedTuple):
    """Hashable, and part of the key under which decisions are kept."""

    backend: str | None = None
    kernels: tuple[tuple[str, str], ...] = ()
    """(operation, kernel), the innermost ``use_kernel`` last."""
    algebra_only: bool = False

    def kernel(self, op: str) -> str | None:
        """The kernel that the innermost ``use_kernel`` for this operation names."""
        return ALGEBRA if self.algebra_only else dict(self.kernels).get(op)


NO_DEMANDS = Demands()
demands: ContextVar[Demands] = ContextVar("mha_core.demands", default=NO_DEMANDS)
watcher: ContextVar[Callable[..., Any] | None] = ContextVar("mha_core.watcher", default=None)
"""What is told of every dispatched operation instead of its being run: ``explain`` and ``verify``."""


dry: ContextVar[bool] = ContextVar("mha_core.dry", default=False)
"""Whether operations are only gone through, so that nothing that lasts may change: a cache, for one."""


@contextmanager
def dry_run() -> Iterator[None]:
    """Go through operations of this context for their checks and choices only."""
    token = dry.set(True)
    try:
        yield
    finally:
        dry.reset(token)


@contextmanager
def demanding(**changes: Any) -> Iterator[None]:
    """Change the demands of this context for a while."""
    token = demands.set(demands.get()._replace(**changes))
    try:
        yield
    finally:
        demands.reset(token)


@contextmanager
def watched_by(watch: Callable[..., Any] | None) -> Iterator[None]:
    """Hand every dispatched operation of this context to ``watch(run)``; None: to nobody."""
    token = watcher.set(watch)
    try:
        yield
    finally:
        watcher.reset(token)
