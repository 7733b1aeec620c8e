"""Scores changed by a function of the caller, and the gradients of that function.

A library's own differentiation computes them if its namespace has a function beyond the array API: ``pullback(f, *arrays)``
returns ``f(*arrays)``, and a function from the gradient of the result to those of the arrays. For others, the tape does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from ..algebra.arrays import Array, Namespace, broadcast_shapes, sum_to
from ..algebra.biases import Bias, BiasSum
from ..algebra.functions import called, is_floating, name_of
from ..algebra.grid import Grid, over_heads
from ..algebra.parts import Part, step_of
from .recorded import Recorded, RecordedNamespace
from .tape import gradients


@dataclass(frozen=True, eq=False)
class ScoreFunction(Bias):
    """``function(score, batch, head, query, key, *inputs)`` takes the place of the score."""

    function: Callable[..., Any]
    inputs: tuple[Array, ...]
    label = feature = "score_function"
    is_added = False
    reads_query_position = True
    reads_heads = True

    def block(self, grid: Grid) -> Array:
        raise TypeError("a score function is no number that is added to the scores: call its method added(scores, grid)")

    def added(self, scores: Array, grid: Grid) -> Array:
        return self._applied(scores, grid, self._wide_inputs(scores, grid))

    def _wide_inputs(self, scores: Array, grid: Grid) -> list[Array]:
        """Return the arrays, floating ones in the dtype of the scores: what they are made of is not rounded to less."""
        xp = grid.xp
        return [xp.astype(x, scores.dtype, copy=False) if is_floating(xp, x) else x for x in self.inputs]

    def _applied(self, scores: Any, grid: Grid, inputs: Sequence[Any]) -> Any:
        """Return the function of the scores and of these arrays, for as many batch elements as either has."""
        x = called(self, self.function, grid, inputs, scores)
        if isinstance(x, Recorded) and not any(isinstance(each, Recorded) for each in (scores, *inputs)):
            name = f"score_function({name_of(self.function)})"
            raise TypeError(f"{name} reads an array whose gradient is recorded: pass it in arrays=, and take it as an argument")
        xp = x.space if isinstance(x, Recorded) else grid.xp
        shape = broadcast_shapes(x.shape, scores.shape)
        return xp.astype(xp.broadcast_to(x, shape) if tuple(x.shape) != shape else x, scores.dtype, copy=False)

    def pullback(self, scores: Array, grid: Grid, *, of_arrays: bool) -> tuple[Array, Callable[[Array], tuple[Array, Any]]]:
        xp, inputs = grid.xp, self._wide_inputs(scores, grid)
        if tuple(scores.shape) != tuple(grid.shape):  # only the values may have some batch axes, and gradients have all
            scores = xp.broadcast_to(scores, grid.shape)
        own = getattr(xp, "pullback", None)
        every = of_arrays or (own is None and _refuses_others(xp))
        varied = [at for at, x in enumerate(inputs) if every and is_floating(xp, x)]

        def function(scores: Any, *some: Any) -> Any:
            changed = list(inputs)
            for at, x in zip(varied, some, strict=True):
                changed[at] = x
            return self._applied(scores, grid, changed)

        value, pull = (own or _recorded(xp))(function, scores, *(inputs[at] for at in varied))

        def pulled(d: Array) -> tuple[Array, Any]:
            of_scores, *others = pull(d)
            of_inputs = dict(zip(varied, others, strict=True))
            of_scores = xp.where(d == 0, 0, of_scores)  # where a pair does not attend, its slope may be infinite
            return of_scores, tuple(of_inputs.get(at) for at in range(len(self.inputs)))

        return value, pulled

    def part(self, xp: Namespace, part: Part) -> Bias:
        return replace(self, function=_Within(self.function, part))

    def sum(self, xp: Namespace) -> BiasSum:
        return _InputSums(xp, self.inputs)


@dataclass(frozen=True, eq=False)
class _Within:
    """A function of a part's heads and positions, by that of the whole problem's."""

    func: Callable[..., Any]
    place: Part

    def __call__(self, score: Any, batch: Any, head: Any, query: Any, key: Any, *inputs: Any) -> Any:
        place = self.place
        rows, cols, offset = place.rows, place.cols, place.offset
        if place.is_dense:
            query = query + cols.start
        else:  # the part has no offset, so this is an index
            offset = offset if isinstance(offset, int) else over_heads(offset)
            query = query * step_of(rows) + (rows.start + offset)
        if place.heads is not None:
            head = head * step_of(place.heads) + place.heads.start
        return self.func(score, batch, head, query, key * step_of(cols) + cols.start, *inputs)


class _InputSums:
    """The gradients of a function's arrays, summed over blocks of scores."""

    def __init__(self, xp: Namespace, inputs: Sequence[Array]) -> None:
        self.xp, self.inputs = xp, inputs
        self.sums: list[Any] = [None] * len(inputs)

    def add(self, grid: Grid, d: Any) -> Array | None:
        for at, x in enumerate(d):
            if x is not None:
                wide = self.xp.astype(sum_to(self.xp, x, self.inputs[at].shape), grid.dtype, copy=False)
                self.sums[at] = wide if self.sums[at] is None else self.sums[at] + wide
        return next((x for x in self.sums if x is not None), None)

    def whole(self, device: Any) -> Any:
        xp = self.xp
        return tuple(self._whole(xp, total, x) for total, x in zip(self.sums, self.inputs, strict=True))

    @staticmethod
    def _whole(xp: Namespace, total: Any, x: Array) -> Array | None:
        if not is_floating(xp, x):
            return None
        return xp.zeros_like(x) if total is None else xp.astype(total, x.dtype, copy=False)


@cache
def _refuses_others(xp: Namespace) -> bool:
    """Return whether the library's arrays raise an error beside a recorded array, and do not leave the operator to it."""
    space, x = RecordedNamespace(xp), xp.ones(1)
    try:
        x * space.leaf(space.tape(), x)
    except (TypeError, ValueError):  # libraries differ in which
        return True
    return False


@cache
def _recorded(xp: Namespace) -> Callable[..., Any]:
    space = RecordedNamespace(xp)

    def pullback(function: Callable[..., Any], *arrays: Array) -> tuple[Array, Callable[[Array], list[Any]]]:
        """Return what a function computes on recorded arrays, and its pullback."""
        tape = space.tape()
        leaves = [space.leaf(tape, x) for x in arrays]
        result = function(*leaves)
        if not isinstance(result, Recorded):  # none of the arrays enters
            return result, lambda d: [xp.zeros_like(x) for x in arrays]

        def pull(d: Array) -> list[Any]:
            of_leaves = gradients(xp, {result.node: d})
            return [of_leaves[leaf.node] if leaf.node in of_leaves else xp.zeros_like(leaf.value) for leaf in leaves]

        return result.value, pull

    return pullback
