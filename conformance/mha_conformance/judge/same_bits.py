"""Equal calls give equal bits: one after another, after other calls, and while other threads call."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
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


def assert_same_bits_together(works: Sequence[Work]) -> None:
    """Run each piece of work alone, then all at the same time, each several times on its own thread."""
    alone = [work() for work in works]
    together = threading.Barrier(len(works))
    wrong: list[int] = []
    errors: list[Exception] = []

    def repeat(at: int) -> None:
        try:
            together.wait(timeout=60)
            wrong.extend(at for _ in range(5) if works[at]() != alone[at])
        except Exception as error:  # an exception raised in a thread would be lost
            errors.append(error)

    # in the caller's context, to which use_kernel belongs: a new thread has an empty one
    threads = [threading.Thread(target=copy_context().run, args=(repeat, at)) for at in range(len(works))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    assert not wrong, f"calls {sorted(set(wrong))} of {len(works)} returned different bits in parallel, {len(wrong)} times"
