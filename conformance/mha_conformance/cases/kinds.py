"""Kinds of values, which the axes of a covering design name; each problem draws a value of its own.

Few kinds keep a design small, and a value that nobody thought of occurs too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .covering import Row

_TRIES = 20


@dataclass(frozen=True)
class Kind:
    """A kind of values: ``draw`` returns one of them, of which ``least`` makes the smallest problem."""

    name: str
    draw: Callable[[np.random.Generator], Any] = field(compare=False, repr=False)
    least: Any = field(default=None, compare=False, repr=False)

    def __str__(self) -> str:
        return self.name


def between(low: int, high: int) -> Kind:
    """Integers from ``low`` to ``high``, small ones as often as great ones, and half of them multiples of 8 where there are."""

    def draw(rng: np.random.Generator) -> int:
        n = min(high, int(np.exp(rng.uniform(math.log(low), math.log(high + 1)))))
        return n - n % 8 if rng.random() < 0.5 and n - n % 8 >= low else n

    return Kind(f"{low} to {high}", draw, low)


def near(*edges: int) -> Kind:
    """The edges, the integers before them, and those after."""
    return Kind(f"near {', '.join(map(str, edges))}", lambda rng: int(rng.choice(edges) + rng.integers(-1, 2)), edges[0] - 1)


def real(low: float, high: float, *, sign: int = 1) -> Kind:
    """Positive numbers from ``low`` to ``high``, small ones as often as great ones, times ``sign``."""
    return Kind(
        f"{sign * low:g} to {sign * high:g}", lambda rng: sign * float(np.exp(rng.uniform(math.log(low), math.log(high)))), low
    )


def some(name: str, *values: Any) -> Kind:
    """One of some values, the first of which makes the smallest problem."""
    return Kind(name, lambda rng: values[rng.integers(len(values))], values[0])


def smallest(row: Mapping[str, Any]) -> Row:
    """Return a row with the value of each kind that makes the smallest problem."""
    return {name: value.least if isinstance(value, Kind) else value for name, value in row.items()}


def values_of(row: Mapping[str, Any], rng: np.random.Generator, possible: Callable[[Row], bool]) -> Row:
    """Return a row with a value of each kind; the smallest values if those of several tries are not possible together."""
    for _ in range(_TRIES):
        drawn = {name: value.draw(rng) if isinstance(value, Kind) else value for name, value in row.items()}
        if possible(drawn):
            return drawn
    return smallest(row)
