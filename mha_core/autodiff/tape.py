"""The tape: what was computed from what, and the gradients of a result with respect to it (Linnainmaa 1976).

Each node stands for a result. It holds a function, the pullback, that maps the gradient of the result to those of its parents.
Pullbacks read the arrays of the forward pass again, so the tape notices if one of these was written to in between.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import count
from typing import Any

from ..algebra.arrays import Array, Namespace, compute_dtype, is_array, sum_to

_numbers = count()

Pull = Callable[[Any], Iterable[Any]]
"""Function of the gradient of a result; returns one gradient for each parent, None for zeros."""


class Tape:
    """One recording: the arrays that its pullbacks will read, each with its version when it was first used."""

    __slots__ = ("_used", "_version")

    def __init__(self, version: Callable[[Array], Any] | None = None) -> None:
        """``version``: function of an array, whose value changes when the array is written to; None if no array can be."""
        self._version, self._used = version, dict[int, tuple[Array, Any]]()

    def use(self, values: Iterable[Any]) -> None:
        """Note the arrays among values, which pullbacks will read."""
        if self._version is not None:
            for x in values:
                if id(x) not in self._used and is_array(x):
                    self._used[id(x)] = x, self._version(x)

    def check(self, *, once: bool = False) -> None:
        """Raise RuntimeError if an array was written to since it was used. ``once``: the arrays are released."""
        used = [*self._used.values()]
        if once:
            self._used.clear()
        for x, version in used:
            assert self._version is not None
            if self._version(x) != version:
                raise RuntimeError(
                    f"an array of shape {tuple(x.shape)} and dtype {x.dtype} was written to after it was used, so gradients "
                    "would be wrong: write x = x + y in place of x += y, or give the function a copy"
                )


class Node:
    """A result: its parents, the function that gives their gradients, and the shape and dtype of its own.

    A node without parents is a leaf. A node without a dtype stands for a tuple of arrays, whose gradient is a tuple too.
    Raises TypeError if its parents are recorded on several tapes.
    """

    __slots__ = ("dtype", "fresh", "number", "parents", "pull", "shape", "tape")
    tape: Tape

    def __init__(
        self, tape: Tape, parents: Sequence[Node] = (), pull: Pull | None = None, like: Any = None, fresh: bool = False
    ) -> None:
        """``fresh``: whether the arrays that ``pull`` returns share no memory with each other, and with no other array."""
        if any(parent.tape is not tape for parent in parents):
            raise TypeError(
                "an array whose gradient is recorded meets one of a value_and_grad or vjp inside it: gradients of gradients "
                "need a library with its own, such as torch"
            )
        self.number, self.parents, self.pull = next(_numbers), tuple(parents), pull
        self.tape, self.fresh = tape, fresh
        self.shape: tuple[int, ...] | None = None if like is None else tuple(like.shape)
        self.dtype: Any = None if like is None else like.dtype


def gradients(xp: Namespace, results: Mapping[Node, Any], *, once: bool = False) -> dict[Node, Any]:
    """Return the gradients of all leaves that results depend on, from those of the results; each has memory of its own.

    ``once``: pullbacks, and the arrays they hold, are released as soon as they were used.
    """
    sums: dict[Node, Any] = {}
    fresh = set[Node]()
    """Nodes whose sum shares memory with no other array."""
    waiting: list[tuple[int, Node]] = []
    for node, d in results.items():
        _add(xp, sums, waiting, node, d)
    leaves: dict[Node, Any] = {}
    while waiting:
        _, node = heapq.heappop(waiting)  # the latest: every result that depends on it has been passed already
        d = sums.pop(node)
        if not node.parents:
            leaves[node] = xp.astype(d, node.dtype, copy=node not in fresh)
            continue
        d = d if node.dtype is None else xp.astype(d, node.dtype, copy=False)
        assert node.pull is not None
        pull = node.pull
        if once:
            node.pull = None
        for parent, of_parent in zip(node.parents, pull(d), strict=True):
            if of_parent is not None:
                if node.fresh or parent in sums:
                    fresh.add(parent)
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
