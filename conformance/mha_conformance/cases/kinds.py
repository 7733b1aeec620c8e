"""Kinds of values, which the axes of a covering design name; each problem draws a value of its own.

Few kinds keep a design small, and a value that nobody thought of occurs too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeAlias

import numpy as np

Row: TypeAlias = dict[str, Any]
"""A value, or a kind of values, for each axis of a design."""
_TRIES = 20


@dataclass(frozen=True)
class Kind:
    """A kind of values: ``draw`` returns one of them, ``least`` makes the smallest problem, and ``all`` lists them if few."""

    name: str
    draw: Callable[[np.random.Generator], Any] = field(compare=False, repr=False)
    least: Any = field(default=None, compare=False, repr=False)
    all: tuple[Any, ...] = field(default=(), compare=False, repr=False)

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
    return some(f"near {', '.join(map(str, edges))}", *(edge + step for edge in edges for step in (-1, 0, 1)))


def real(low: float, high: float, *, sign: int = 1) -> Kind:
    """Positive numbers from ``low`` to ``high``, small ones as often as great ones, times ``sign``."""
    return Kind(
        f"{sign * low:g} to {sign * high:g}", lambda rng: sign * float(np.exp(rng.uniform(math.log(low), math.log(high)))), low
    )


def below_one(low: float, high: float) -> Kind:
    """Numbers below 1 by ``low`` to ``high``, near ones as often as far ones: of powers, only those of near ones last."""
    distance = real(low, high)
    return Kind(f"1 - {distance}", lambda rng: 1 - distance.draw(rng), 1 - high)


def some(name: str, *values: Any) -> Kind:
    """One of some values, the first of which makes the smallest problem."""
    return Kind(name, lambda rng: values[rng.integers(len(values))], values[0], values)


def smallest(row: Mapping[str, Any]) -> Row:
    """Return a row with the value of each kind that makes the smallest problem."""
    return {name: least_of(value) for name, value in row.items()}


def least_of(value: Any) -> Any:
    """Return the value of a kind that makes the smallest problem, or a value itself."""
    return value.least if isinstance(value, Kind) else value


def in_turn(rows: Iterable[Row], rng: np.random.Generator, possible: Callable[[Row], bool]) -> Iterator[Row]:
    """Yield rows in which a kind of few values takes each of them in turn, in random orders, so that no seed leaves one out.

    A value that is too large for a row waits for the next.
    """
    left: dict[tuple[str, Kind], list[Any]] = {}
    for row in rows:
        taken, least = dict(row), smallest(row)
        for name, kind in row.items():
            if isinstance(kind, Kind) and kind.all:
                waiting = left.setdefault((name, kind), [])
                if len(waiting) < len(kind.all):
                    waiting += [kind.all[at] for at in rng.permutation(len(kind.all))]
                at = next((at for at, value in enumerate(waiting) if possible(least | {name: value})), None)
                if at is not None:
                    least[name] = value = waiting.pop(at)
                    taken[name] = replace(kind, draw=partial(_same, value), least=value)
        yield taken


def _same(value: Any, rng: np.random.Generator) -> Any:
    return value


def values_of(row: Mapping[str, Any], rng: np.random.Generator, possible: Callable[[Row], bool]) -> Row:
    """Return a row with a value of each kind; the smallest values if those of several tries are not possible together."""
    for _ in range(_TRIES):
        drawn = {name: value.draw(rng) if isinstance(value, Kind) else value for name, value in row.items()}
        if possible(drawn):
            return drawn
    return smallest(row)
