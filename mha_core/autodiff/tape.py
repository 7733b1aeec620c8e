"""The tape: what was computed from what, and the gradients of a result with respect to it (Linnainmaa 1976).

Each node stands for a result. It holds a function, the pullback, that maps the gradient of the result to those of its parents.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import count
from typing import Any

from ..algebra.arrays import Array, Namespace, compute_dtype, sum_to

_numbers = count()

Pull = Callable[[Any], Iterable[Any]]
"""Function of the gradient of a result; returns one gradient for each parent, None for zeros."""


class Node:
    """A result: its parents, the function that gives their gradients, and the shape and dtype of its own.

    A node without parents is a leaf. A node without a dtype stands for a tuple of arrays, whose gradient is a tuple too.
    """

    __slots__ = ("dtype", "number", "parents", "pull", "shape")

    def __init__(self, parents: Sequence[Node] = (), pull: Pull | None = None, like: Any = None) -> None:
        self.number, self.parents, self.pull = next(_numbers), tuple(parents), pull
        self.shape: tuple[int, ...] | None = None if like is None else tuple(like.shape)
        self.dtype: Any = None if like is None else like.dtype


def gradients(xp: Namespace, results: Mapping[Node, Any], *, once: bool = False) -> dict[Node, Any]:
    """Return the gradients of all leaves that results depend on, from those of the results.

    ``once``: pullbacks, and the arrays they hold, are released as soon as they were used.
    """
    sums: dict[Node, Any] = {}
    waiting: list[tuple[int, Node]] = []
    for node, d in results.items():
        _add(xp, sums, waiting, node, d)
    leaves: dict[Node, Any] = {}
    while waiting:
        _, node = heapq.heappop(waiting)  # the latest: every result that depends on it has been passed already
        d = sums.pop(node)
        d = d if node.dtype is None else xp.astype(d, node.dtype, copy=False)
        if not node.parents:
            leaves[node] = d
            continue
        assert node.pull is not None
        pull = node.pull
        if once:
            node.pull = None
        for parent, of_parent in zip(node.parents, pull(d), strict=True):
            if of_parent is not None:
                _add(xp, sums, waiting, parent, of_parent)
    return leaves


def _add(xp: Namespace, sums: dict[Node, Any], waiting: list[tuple[int, Node]], node: Node, d: Any) -> None:
    if node.shape is not None:
        d = sum_to(xp, d, node.shape)
    if node not in sums:
        heapq.heappush(waiting, (-node.number, node))
        sums[node] = d
    elif node.dtype is None:
        sums[node] = type(d)(*(_total(xp, *pair) for pair in zip(sums[node], d, strict=True)))
    else:
        sums[node] = _total(xp, sums[node], d)


def _total(xp: Namespace, a: Array | None, b: Array | None) -> Array | None:
    """Return a + b, in float32 if they are in half precision; None stands for zeros."""
    if a is None or b is None:
        return b if a is None else a
    wide = compute_dtype(xp, a.dtype)
    return xp.astype(a, wide, copy=False) + xp.astype(b, wide, copy=False)


def leaves_of(values: Iterable[Any]) -> Iterator[Any]:
    """Yield values, and those inside lists and tuples among them."""
    for value in values:
        if isinstance(value, list | tuple):
            yield from leaves_of(value)
        else:
            yield value
