"""A score function in NumPy float64, from its expression: its values, slopes, and the gradients of its arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from .attention import Floats
from .expressions import Expression, Operation, Rounded, derivative, evaluated, reads_of


@dataclass(frozen=True, eq=False)
class ScoreFunction:
    """An expression of ``score``, the indices of all pairs, (..., H, L, S), and arrays.

    It takes the place of the scores of its pairs. Further keys, with which the scores may end, keep theirs.
    """

    expression: Expression
    indices: Mapping[str, np.ndarray]
    """The indices of all pairs, and arrays of integers and booleans, by name."""
    arrays: Mapping[str, Floats]
    """Floating arrays, which have gradients."""

    def __call__(self, scores: Floats) -> Floats:
        """Return what takes the place of the scores."""
        return self.rounded(scores, 0.0, 0.0).value

    def rounded(self, scores: Floats, error: Any, u: float) -> Rounded:
        """Return the same with a bound on the error, if the scores have this error, for a unit roundoff of ``u``."""
        return self._of_all(self.expression, Rounded(scores, error, u), Rounded(scores, error, u))

    def slope(self, scores: Floats, error: Any, u: float) -> Rounded:
        """Return the derivative by the score, likewise."""
        return self._of_all(derivative(self.expression, "score"), Rounded(scores, error, u), Rounded(np.ones(()), 0.0, u))

    def slopes_of(self, name: str, scores: Floats, error: Any, u: float) -> list[tuple[Operation, Rounded]]:
        """Return the derivative by each number that the expression reads of an array, with the place that reads it."""
        score, more = Rounded(scores, error, u), Rounded(np.zeros(()), 0.0, u)
        every = reads_of(name, self.expression)
        return [(read, self._of_all(derivative(self.expression, read), score, more)) for read in every]

    def gradient(self, name: str, terms: list[tuple[Operation, Floats]]) -> Floats:
        """Return the gradient of an array: the terms of all pairs, summed where each was read from."""
        gradient, pairs = np.zeros(self.arrays[name].shape), self._shape
        for read, of_pairs in terms:
            index = (np.broadcast_to(evaluated(each, self.indices), pairs) for each in read.operands[1:])
            np.add.at(gradient, tuple(index), of_pairs[..., : pairs[-1]])
        return gradient

    @property
    def _shape(self) -> tuple[int, ...]:
        return np.broadcast_shapes(*(self.indices[name].shape for name in ("batch", "head", "query", "key")))

    def _of_all(self, expression: Expression, score: Rounded, more: Rounded) -> Rounded:
        """Return an expression's value for its pairs, and ``more`` for further keys; both broadcast to the scores."""
        shape = self._shape
        whole = (*shape[:-1], score.value.shape[-1])
        score, more = (Rounded(np.broadcast_to(x.value, whole), np.broadcast_to(x.error, whole), x.u) for x in (score, more))
        arrays = {name: Rounded(x, 0.0, score.u) for name, x in self.arrays.items()}
        result = evaluated(expression, {**self.indices, **arrays, "score": score[..., : shape[-1]]})
        value, error = (result.value, result.error) if isinstance(result, Rounded) else (result, 0.0)

        def joined(x: Any, y: Any) -> Any:
            return np.concatenate([np.broadcast_to(x, shape), y[..., shape[-1] :]], axis=-1)

        return Rounded(joined(value, more.value), joined(error, more.error), score.u)


@dataclass(frozen=True, eq=False)
class Changed:
    """Scores after a score function, with what their gradients depend on; errors are in units of the unit roundoff."""

    score: Rounded
    slope: Rounded
    """The derivative by the score before."""
    slopes: Mapping[str, list[tuple[Operation, Rounded]]]
    """For each array of the function, the derivatives by the numbers that are read of it."""

    @classmethod
    def unchanged(cls, scores: Floats, error: Floats) -> Changed:
        return cls(Rounded(scores, error, 1.0), Rounded(np.ones(()), 0.0, 1.0), {})

    @classmethod
    def by(cls, function: ScoreFunction, scores: Floats, error: Floats, u: float) -> Changed:
        """Return what a function makes of scores that have this error."""

        def in_units(x: Rounded) -> Rounded:
            return Rounded(x.value, x.error / u, 1.0)

        given = scores, u * error, u
        slopes = {name: [(read, in_units(x)) for read, x in function.slopes_of(name, *given)] for name in function.arrays}
        return cls(in_units(function.rounded(*given)), in_units(function.slope(*given)), slopes)

    def terms(self, of_pairs: Callable[[Rounded], Floats]) -> dict[str, list[tuple[Operation, Floats]]]:
        """Return the terms of the gradient of each array, which are a function of the derivatives."""
        return {name: [(read, of_pairs(x)) for read, x in every] for name, every in self.slopes.items()}
