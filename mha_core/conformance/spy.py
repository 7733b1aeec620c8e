"""One kernel brought before all others of its operation, and watched: what the calls were, and whether it was given them.

The registry is used as any plugin uses it: the kernel is registered once more, under a name and a priority of its own.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from ..dispatch.contract import Call, Kernel
from ..dispatch.hookspecs import hookimpl
from ..dispatch.kernels import imported
from ..dispatch.registry import register, unregister
from .evidence import evidence


@dataclass
class Watch:
    """What happened while a kernel was watched.

    seen: every call of the operation, whether the kernel may have it or not. asked: those that its ``supports`` was asked
    about. runs: how often it was called. reasons: its own reasons against.
    """

    kernel: Kernel
    features: frozenset[str]
    seen: list[Call] = field(default_factory=list)
    asked: list[Call] = field(default_factory=list)
    runs: int = 0
    reasons: list[str] = field(default_factory=list)

    def _look(self, call: Call) -> str:
        self.seen.append(call)
        return "only looks"

    def _supports(self, call: Call) -> str | None:
        self.asked.append(call)
        reason = None if self.kernel.supports is None else imported(self.kernel.supports)(call)
        self.reasons += [] if reason is None else [reason]
        return reason

    @hookimpl
    def mha_kernels(self) -> Iterator[Kernel]:
        watched = replace(
            self.kernel,
            name=f"{self.kernel.name} under test",
            load=f"{__name__}:run",
            prepare=None if self.kernel.prepare is None else f"{__name__}:prepare",
            priority=sys.maxsize - 1,
            supports=self._supports,
            opt_in=False,
        )
        yield watched
        # a kernel that declares everything and takes nothing sees each call as core describes it
        looks: dict[str, Any] = {"name": "looks on", "priority": sys.maxsize, "handles": self.features, "supports": self._look}
        yield replace(watched, **looks)

    def assert_given_what_it_declares(self) -> None:
        """Raise AssertionError where the kernel was asked for what it does not declare, or not asked for what it does."""
        assert self.seen, "no call of this operation was seen: core names a feature that this suite does not know"
        for call in self.seen:
            undeclared = sorted(call.features - self.kernel.handles)
            asked = call in self.asked
            assert not (undeclared and asked), f"the kernel was asked for {', '.join(undeclared)}, which it does not declare"
            assert undeclared or asked, f"the kernel declares {sorted(call.features)}, and was not asked"
        assert self.asked or not self.runs, "the kernel was called for what it does not declare"


_watches: list[Watch] = []


def run(*arguments: Any, **options: Any) -> Any:
    """The kernel that is watched."""
    watch = _watches[-1]
    watch.runs += 1
    return imported(watch.kernel.load)(*arguments, **options)


def prepare(problem: Any) -> Callable[..., Any] | None:
    """The same where it is prepared."""
    watch = _watches[-1]
    assert watch.kernel.prepare is not None
    compute = imported(watch.kernel.prepare)(problem)
    if compute is None:
        return None

    def counted(*arrays: Any) -> Any:
        watch.runs += 1
        return compute(*arrays)

    return counted


@contextmanager
def watched(kernel: Kernel, features: Iterable[str] = ()) -> Iterator[Watch]:
    """Within, calls of the kernel's operation on its backend go to it first; ``features``: all that core may name."""
    watch = Watch(kernel, frozenset(features))
    register(watch, f"conformance of {kernel.name}")
    _watches.append(watch)
    try:
        yield watch
    finally:
        _watches.pop()
        unregister(watch)
        evidence.runs(kernel.op, kernel.name, watch.runs)
