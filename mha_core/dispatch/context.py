"""The caller's demands and watcher, as context variables; a new thread starts with neither."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from threading import Lock
from typing import Any, NamedTuple

ALGEBRA = "algebra"
"""The name with which ``use_kernel`` demands the algebra instead of a kernel."""


class Demands(NamedTuple):
    """The demands of ``use_backend`` and ``use_kernel``; hashable, because it is part of the key of a plan."""

    backend: str | None = None
    kernels: tuple[tuple[str, str], ...] = ()
    """Pairs (operation, kernel), the innermost ``use_kernel`` last."""
    algebra_only: bool = False
    alone: bool = False
    """Results of attention stay as its kernels give them, for their judges."""


NO_DEMANDS = Demands()
demands: ContextVar[Demands] = ContextVar("mha_core.demands", default=NO_DEMANDS)
watcher: ContextVar[Callable[..., Any] | None] = ContextVar("mha_core.watcher", default=None)
"""The function that receives every dispatched operation instead of running it, for ``explain`` and ``verify``."""
dry: ContextVar[bool] = ContextVar("mha_core.dry", default=False)
"""True if operations only check their arguments and choose kernels; caches must not change then."""


_overridden = False
_depth = 0
_lock = Lock()


def is_overridden() -> bool:
    """Return whether any thread is inside ``use_backend``, ``use_kernel``, ``explain`` or ``verify``.

    For compilers that record calls: they cannot read context variables, but they can watch this.
    """
    return _overridden


def demanding(**changes: Any) -> AbstractContextManager[None]:
    """Change the demands inside this context."""
    return _overriding(demands, demands.get()._replace(**changes))


def watched_by(watch: Callable[..., Any] | None) -> AbstractContextManager[None]:
    """Hand every dispatched operation in this context to ``watch(run)``; None removes a watcher."""
    return _overriding(watcher, watch)


@contextmanager
def dry_run(watch: Callable[..., Any] | None = None) -> Iterator[None]:
    """Make operations in this context only check their arguments and choose kernels; ``watch``, if given, receives them."""
    with _within(dry, True), nullcontext() if watch is None else _within(watcher, watch):
        yield


@contextmanager
def _overriding(variable: ContextVar[Any], value: Any) -> Iterator[None]:
    _count(1)
    try:
        with _within(variable, value):
            yield
    finally:
        _count(-1)


def _count(change: int) -> None:
    global _depth, _overridden
    with _lock:
        _depth += change
        _overridden = _depth > 0


@contextmanager
def _within(variable: ContextVar[Any], value: Any) -> Iterator[None]:
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)
