"""Equal calls give equal bits: one after another, after other calls, and while other threads call."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextvars import copy_context
from typing import Any

from ..backend import BackendUnderTest

Work = Callable[[], bytes]


def bits(backend: BackendUnderTest, result: Any) -> bytes:
    """Return the bytes of an array, or of a tuple of arrays."""
    several = result if isinstance(result, tuple) else (result,)
    return b"".join(backend.numpy(x).tobytes() for x in several)


def assert_same_bits(backend: BackendUnderTest, calls: dict[str, Callable[[], Any]]) -> None:
    """Make each call twice in a row, then all of them again in reverse order."""
    first = {}
    for name, call in calls.items():
        first[name] = bits(backend, call())
        assert bits(backend, call()) == first[name], f"{name} returned different bits the second time"
    for name, call in reversed(calls.items()):
        assert bits(backend, call()) == first[name], f"{name} returned different bits after other calls"


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
