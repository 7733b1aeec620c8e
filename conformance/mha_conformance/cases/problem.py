"""The base of all problems of a covering design: arrays in NumPy, a call on a backend, and the oracle's answer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..oracle.attention import Floats
from .kinds import Row

Bounded = tuple[Floats, Floats]
"""An exact array, and a bound on the error of each element."""


@dataclass
class Problem:
    """A call to be judged. ``floats`` are rounded to a dtype of the backend before they are used."""

    row: Row
    floats: dict[str, np.ndarray]
    """Floating arrays by name."""
    others: dict[str, np.ndarray] = field(default_factory=dict)
    """Arrays of booleans and integers by name."""
    wide: frozenset[str] = frozenset()
    """The floating arrays that are given in the dtype of the scores, also beside half precision."""

    steepness = 1.0
    """By how much a result changes, relative to its size, when the arrays change relative to theirs."""
    wide_results = frozenset({"lse"})
    """The results that have the dtype of the scores, also beside half precision."""
    first = "x"
    """The array whose dtype and device the result has."""

    def call(self, arrays: Mapping[str, Any]) -> dict[str, Any]:
        """Compute on a backend; return the results by name."""
        raise NotImplementedError

    def exact(self, floats: Mapping[str, Floats]) -> dict[str, Floats]:
        """Return the exact results, by the same names."""
        raise NotImplementedError

    def expected(self, floats: Mapping[str, Floats], dtype: str, *, rounds_weights: bool) -> dict[str, Bounded]:
        """Return the exact results with bounds on the errors of a computation in ``dtype``."""
        raise NotImplementedError

    def bounds(self, floats: Mapping[str, Floats], dtype: str, *, rounds_weights: bool) -> Iterator[dict[str, Bounded]]:
        """Yield what ``expected`` returns at last; before it, with narrower bounds that take less time to find."""
        yield self.expected(floats, dtype, rounds_weights=rounds_weights)

    def derived(self, floats: Mapping[str, Floats]) -> dict[str, Floats]:
        """Return further floating arrays, which depend on the others: on those that were rounded."""
        return {}

    def with_poison(self, floats: Mapping[str, Floats]) -> dict[str, Floats]:
        """Return the arrays with NaN and inf in all places that the result must not depend on."""
        return dict(floats)

    def sizes(self, floats: Mapping[str, Floats]) -> dict[str, float]:
        """Return the typical size of each result, before its terms cancel."""
        finite = {name: x[np.isfinite(x)] for name, x in self.exact(floats).items()}
        return {name: float(np.sqrt(np.mean(x**2))) if x.size else 0.0 for name, x in finite.items()}

    def constant(self, floats: Mapping[str, Floats]) -> dict[str, np.ndarray]:
        """Return, for some arrays, where the results do not depend on them: gradients there are exactly 0."""
        return {}

    def layout(self, name: str) -> tuple[str, tuple[int, ...]]:
        """Return how an array lies in memory, and its axes of stride 0."""
        layout: str = self.row["layout"]
        return layout, ()

    def __str__(self) -> str:
        return ", ".join(f"{name}={value}" for name, value in self.row.items())
