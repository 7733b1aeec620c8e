"""Run independent tasks on all cores, while the BLAS is held at one thread.

NumPy releases the interpreter lock inside its loops and products, so threads run in parallel; a product that is itself threaded
leaves all cores but one idle between two products. If the BLAS cannot be held, tasks run one after another, and the BLAS
chooses how many threads it uses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

from .blas import can_hold, one_thread
from .cores import num_threads
from .interrupts import Shield, shielded
from .pool import TaskQueue, inside_a_task

__all__ = ["num_threads", "parallel", "run", "run_in_turn"]

_AHEAD = 4  # tasks per thread that begin before their results are requested


def run(function: Callable[[Any], Any], items: Iterable[Any]) -> None:
    """Call ``function(item)`` for all items: each is a task, begun in this order on a free thread, in the caller's context.

    If a task raises, no further task begins, and the first exception is raised once the tasks that have begun are done. A
    call from inside a task runs its own tasks one after another.
    """
    if _one_after_another():
        for item in items:
            function(item)
        return
    shielded(TaskQueue(function).compute, list(items))


def parallel(function: Callable[[Any], Any], items: Iterable[Any]) -> Iterator[Any]:
    """Yield the results of ``function(item)`` in the order of the items, each as soon as it is known. Few items are read ahead.

    Tasks run as in ``run``; a single item is a task too, so its bits do not depend on the number of threads.
    """
    remaining = iter(items)
    if _one_after_another():
        yield from map(function, remaining)
        return
    first = list(islice(remaining, 2))
    results: dict[int, Any] = {}

    def task(numbered: tuple[int, Any]) -> None:
        at, item = numbered
        results[at] = function(item)

    queue = TaskQueue(task)
    with queue, queue:
        queue.add(enumerate(first))
        begun, asked = len(first), 0
        while asked < begun:
            more = list(islice(remaining, max(0, asked + _AHEAD * num_threads() - begun)))
            queue.add(enumerate(more, begun))
            begun += len(more)
            if asked in results:  # the caller goes on with it, and helpers compute what is waiting
                queue.call_helpers()
            else:
                queue.work(until=lambda: asked in results)  # noqa: B023  called before asked changes
            yield results.pop(asked)
            asked += 1


def run_in_turn(function: Callable[[Any], Any], items: Iterable[Any]) -> None:
    """Call ``function(item)`` for all items, one after another in the caller's thread."""

    def hold(shield: Shield) -> None:
        with one_thread:
            shield.compute(lambda: [function(item) for item in items])

    shielded(hold)


def _one_after_another() -> bool:
    return inside_a_task() or not can_hold()
