"""Random functions of batch, head, query and key, as masks and as scores: expressions of operators and indexing.

Every number that is computed from positions stays below 2^31, also beside positions beyond 24 bits: it is taken modulo a small
number before it is multiplied or added up. The slope of a score function by the score is at most 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..oracle.expressions import Expression, evaluated, op

INDICES = ("batch", "head", "query", "key")
_COMPARISONS = ("<", "<=", ">", ">=", "==", "!=")


def indices_of(q: np.ndarray, k: np.ndarray, batch: tuple[int, ...], heads: int) -> dict[str, np.ndarray]:
    """Return the indices of all pairs, (..., H, L, S), from the positions q of the queries, (..., L, 1), and k of the keys."""
    number = np.arange(math.prod(batch)).reshape(*batch, 1, 1, 1)
    shape = (*batch, heads, q.shape[-2], len(k))
    every = zip(INDICES, (number, np.arange(heads)[:, None, None], q, k), strict=True)
    return {name: np.broadcast_to(x, shape) for name, x in every}


@dataclass
class Draw:
    """Draws expressions: ``structure`` decides on their form, ``rng`` on the numbers in arrays."""

    structure: np.random.Generator
    rng: np.random.Generator
    sizes: dict[str, int]
    """The numbers of batch elements, heads and keys."""
    name: str
    """The arrays that are drawn are called by it, and by a number."""
    mixed: bool = False
    """Whether floating numbers and integers may be multiplied, which the array API leaves open."""
    arrays: dict[str, np.ndarray] = field(default_factory=dict)

    def mask(self, depth: int = 2) -> Expression:
        """Return comparisons that are combined by ``&``, ``|`` and ``~``."""
        if depth == 0 or self.structure.random() < 0.2:
            return self._comparison()
        kind = self._one_of("&", "|", "|", "~")
        return op(kind, *(self.mask(depth - 1) for _ in range(1 if kind == "~" else 2)))

    def score(self, depth: int = 3) -> Expression:
        """Return the score after some steps, at least one of which reads an array; none is steeper than 1."""
        expression: Expression = "score"
        for _ in range(int(self.structure.integers(1, depth + 1))):
            expression = self._step(expression)
        return expression if self.arrays else op("+", expression, self._number())

    def _step(self, score: Expression) -> Expression:
        match self.structure.integers(6):
            case 0:
                return op("+", score, self._number())
            case 1:
                return op("-", score, self._number())
            case 2:
                return op("-", self._number(), score)
            case 3:
                return op("*", score, self._read(self._fractions))
            case 4:
                return op("/", score, op("+", 1.0, op("*", score, score)))
        other = op("*", self._read(self._fractions), "score")
        return op("*", 0.5, op("+", score, other))

    def _number(self, depth: int = 1) -> Expression:
        """Return a floating number of each pair, of which few are larger than 5."""
        kind = self._one_of("read", "abs", *(["+", "*", "half", *["index"] * self.mixed] if depth else []))
        read = self._read(self.rng.normal)
        if kind in ("+", "*"):
            return op(kind, read, self._number(depth - 1))
        if kind == "index":
            return op("*", read, op("%", op("abs", op("-", "query", "key")), 4))
        return {"read": read, "abs": op("abs", read), "half": op("-", op("*", read, 0.5))}[kind]

    def _comparison(self) -> Expression:
        how = self._one_of(*_COMPARISONS)
        match self.structure.integers(5):
            case 0:
                return self._read(self._booleans)
            case 1:
                number = self.rng.integers(-16, 17, size=(2, self.sizes["key"])) / 8  # equal in every dtype
                first, second = (self._array(x) for x in number)
                return op(how, op("[]", first, "key"), op("[]", second, "key"))
            case 2:
                return op(how, self._small(1), int(self.structure.integers(0, 4)))
            case 3:
                return op(how, self._small(1), self._small(1))
        distance = self._one_of(op("-", "query", "key"), op("-", "key", "query"), op("abs", op("-", "query", "key")))
        return op(how, distance, self._small(0))

    def _small(self, depth: int) -> Expression:
        """Return integers of each pair, smaller than 1000."""
        kind = self._one_of("index", "read", "%", "//", *(["+", "-", "*", "abs"] if depth else []))
        n, position = int(self.structure.integers(2, 9)), self._position()
        if kind in ("+", "-"):
            return op(kind, self._small(depth - 1), self._small(depth - 1))
        if kind == "*":
            return op("*", self._small(depth - 1), n)
        if kind == "abs":
            return op("abs", op("-", self._small(depth - 1), self._small(depth - 1)))
        if kind == "//":
            return op("%", op("//", position, n), n + 1)
        if kind == "read":
            return self._read(self._integers)
        return op("%", position, n) if kind == "%" else self._one_of("head", "batch")

    def _position(self) -> Expression:
        return self._one_of("query", "key", op("+", "query", "key"), op("-", "query", "key"), op("-", "key", "query"))

    def _read(self, numbers: Callable[..., np.ndarray]) -> Expression:
        """Return a number of an array at indices of each pair."""
        n, axes = int(self.structure.integers(2, 90)), []
        names = self._one_of(
            ("head",), ("key",), ("batch",), ("head", "key"), ("batch", "key"), ("%",), ("head", "%"), ("ids",)
        )
        index: list[Expression] = []
        for name in names:
            if name == "ids":
                ids = self._array(self.rng.integers(0, 5, size=n))
                name, index, axes = "", ["head", op("[]", ids, op("%", self._position(), n))], [self.sizes["head"], 5]
            elif name == "%":
                index, axes = [*index, op("%", self._position(), n)], [*axes, n]
            else:
                index, axes = [*index, name], [*axes, self.sizes[name]]
        return op("[]", self._array(numbers(size=tuple(axes))), *index)

    def _booleans(self, size: tuple[int, ...]) -> np.ndarray:
        return self.rng.random(size) < 0.6

    def _integers(self, size: tuple[int, ...]) -> np.ndarray:
        return self.rng.integers(0, 4, size=size)

    def _fractions(self, size: tuple[int, ...]) -> np.ndarray:
        return self.rng.uniform(-1, 1, size=size)

    def _array(self, x: np.ndarray) -> str:
        name = f"{self.name} {len(self.arrays)}"
        self.arrays[name] = x
        return name

    def _one_of(self, *values: Any) -> Any:
        return values[int(self.structure.integers(len(values)))]


def as_function(expression: Expression, names: list[str], *first: str) -> Callable[..., Any]:
    """Return a function of what ``first`` names, the indices of a pair, and these arrays."""

    def function(*arguments: Any) -> Any:
        return evaluated(expression, dict(zip((*first, *INDICES, *names), arguments, strict=True)))

    function.__name__ = str(expression)
    return function
