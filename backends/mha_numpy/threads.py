"""All cores for work that falls into independent parts: threads that stay, and a BLAS held at one thread meanwhile.

NumPy lets go of the interpreter inside its loops and products, so threads run side by side; a product that is itself
threaded leaves a core idle in everything between two products. Where the BLAS cannot be held, parts run one after another,
and the BLAS threads as it likes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

from .blas import can_hold, one_thread
from .cores import num_threads
from .pool import Parts, inside_a_part

__all__ = ["num_threads", "one_thread", "parallel", "run"]

_AHEAD = 4  # parts for each thread that are begun before their results are asked for


def run(function: Callable[[Any], Any], items: Iterable[Any]) -> None:
    """``function(item)`` for every item: begun in the order given, on as many threads as are free, in the caller's context.

    The first exception of a part is raised once every part that has begun has ended; the others do not begin. A call from
    inside a part runs its own parts one after another.
    """
    if _one_after_another():
        for item in items:
            function(item)
        return
    with Parts(function) as parts:
        parts.add(items)
        parts.work()


def parallel(function: Callable[[Any], Any], items: Iterable[Any]) -> Iterator[Any]:
    """The results in the order of the items, each as soon as it is there; few items and results wait at a time.

    As ``run`` otherwise; but a single part is the caller's own, and may have parts on all cores itself.
    """
    rest = iter(items)
    first = list(islice(rest, 2))
    if len(first) < 2 or _one_after_another():
        yield from map(function, first)
        yield from map(function, rest)
        return
    results: dict[int, Any] = {}

    def part(numbered: tuple[int, Any]) -> None:
        at, item = numbered
        results[at] = function(item)

    with Parts(part) as parts:
        parts.add(enumerate(first))
        begun, asked = len(first), 0
        while asked < begun:
            more = list(islice(rest, max(0, asked + _AHEAD * num_threads() - begun)))
            parts.add(enumerate(more, begun))
            begun += len(more)
            parts.work(until=lambda: asked in results)  # noqa: B023  called before asked changes
            yield results.pop(asked)
            asked += 1


def _one_after_another() -> bool:
    return inside_a_part() or not can_hold()
