"""Equal calls give equal bits: one after another, after other calls, and while other threads call."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context

Work = Callable[[], bytes]
"""Computes something, and returns its bits."""


def assert_same_bits(works: Mapping[str, Work]) -> None:
    """Do each work twice in a row, then all of them again in reverse order."""
    first = {}
    for name, work in works.items():
        first[name] = work()
        assert work() == first[name], f"{name} returned different bits the second time"
    for name, work in reversed([*works.items()]):
        assert work() == first[name], f"{name} returned different bits after other calls"


def assert_same_bits_together(works: Sequence[Work], *, times: int = 5) -> None:
    """Run each piece of work alone, then all at once, each ``times`` on its own thread."""
    alone = [work() for work in works]
    together = threading.Barrier(len(works))

    def repeat(at: int) -> int:
        """Return how often the bits were others."""
        together.wait(timeout=60)
        return sum(works[at]() != alone[at] for _ in range(times))

    contexts = [copy_context() for _ in works]  # use_kernel belongs to the context, and that of a new thread is empty
    with ThreadPoolExecutor(len(works)) as threads:
        wrong = list(threads.map(lambda at: contexts[at].run(repeat, at), range(len(works))))
    calls = [at for at, times in enumerate(wrong) if times]
    assert not calls, f"calls {calls} of {len(works)} returned different bits in parallel, {sum(wrong)} times"
