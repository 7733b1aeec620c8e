"""Covering designs: few rows, in which every pair of values of different axes occurs, and every triple of chosen axes.

A greedy search finds the rows, as in AETG (Cohen, Dalal, Fredman and Patton 1997). Each row begins with a combination that has
not occurred yet, of axes drawn by chance: if all rows began with the axes that have most combinations, all would be crowded
alike. Every other axis then gets the value that adds most combinations. This alone would give rows in which almost everything
is given at once, so three of four rows give at most two options.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any, TypeAlias

import numpy as np

Row: TypeAlias = dict[str, Any]
"""A value for each axis."""
_TRIES = 4
"""Orders of the axes that are tried before a combination counts as impossible."""


class Covering:
    """An iterable of the rows of a covering design, in random order: if it is cut short, another seed tries other rows.

    Parameters
    ----------
    axes : the values of each axis
    rng : decides between values that add equally many
    possible : function of some of a row's values; returns False if no row can contain them
    triples : axes of which every triple of values must occur
    plain : the value of some axes that means "not given"; a row gives few of them, or as many as add combinations
    """

    def __init__(
        self,
        axes: Mapping[str, Sequence[Any]],
        rng: np.random.Generator,
        *,
        possible: Callable[[Row], bool] = lambda row: True,
        triples: Iterable[tuple[str, str, str]] = (),
        plain: Mapping[str, Any] | None = None,
    ) -> None:
        self._axes, self._rng, self._possible = axes, rng, possible
        self._plain = {
            name: list(axes[name]).index(value) for name, value in (plain or {}).items() if value in axes.get(name, ())
        }
        groups = [*combinations(axes, 2), *(group for group in triples if set(group) <= set(axes))]
        self._missing = {group: self._all_possible(group) for group in groups}
        self._groups_of = {name: [group for group in groups if name in group] for name in axes}
        self._counted = {group: np.zeros_like(missing) for group, missing in self._missing.items()}
        self._last: dict[str, int] = {}
        self.combinations = self.missing
        """Number of combinations that can occur."""

    @property
    def missing(self) -> int:
        """Number of combinations that have not occurred in a row yet."""
        return sum(int(missing.sum()) for missing in self._missing.values())

    @property
    def counted(self) -> int:
        """Number of combinations in the rows that were counted."""
        return sum(int(counted.sum()) for counted in self._counted.values())

    def count(self) -> None:
        """Count the combinations of the last row."""
        for group, counted in self._counted.items():
            counted[tuple(self._last[name] for name in group)] = True

    def __iter__(self) -> Iterator[Row]:
        while True:
            left = np.sqrt([missing.sum() for missing in self._missing.values()])
            if not left.any():
                return
            at = self._rng.choice(len(left), p=left / left.sum())
            chosen = self._row_with_a_missing_one_of(list(self._missing)[at])
            if chosen is not None:
                for each, missing in self._missing.items():
                    missing[tuple(chosen[name] for name in each)] = False
                self._last = chosen
                yield self._row(chosen)

    def and_random(self) -> Iterator[Row]:
        """Yield the rows of the design, and then random rows without end."""
        yield from self
        while True:
            chosen = self._completed({})
            if chosen is None:
                return
            self._last = chosen
            yield self._row(chosen)

    def _row_with_a_missing_one_of(self, group: tuple[str, ...]) -> dict[str, int] | None:
        """Return the indices of a row's values; None if a combination turned out to be impossible, which is then left out."""
        missing = self._missing[group]
        first = np.unravel_index(self._rng.choice(np.flatnonzero(missing)), missing.shape)
        for _ in range(_TRIES):
            chosen = self._completed({name: int(at) for name, at in zip(group, first, strict=True)})
            if chosen is not None:
                return chosen
        missing[first] = False
        self.combinations -= 1
        return None

    def _completed(self, chosen: dict[str, int]) -> dict[str, int] | None:
        """Return the indices of a whole row's values that contains those already chosen; None if none was found."""
        rest = [name for name in self._axes if name not in chosen]
        self._rng.shuffle(rest)
        most = self._rng.choice([0, 1, 2, len(self._plain)])
        for name in rest:
            gain = self._gain(chosen, name) + self._rng.random(len(self._axes[name]))  # values that gain equally in any order
            if name in self._plain and self._given(chosen) >= most:
                gain[self._plain[name]] = np.inf
            ranked = (int(at) for at in np.argsort(-gain))
            fitting = next((at for at in ranked if self._possible(self._row(chosen | {name: at}))), None)
            if fitting is None:
                return None
            chosen[name] = fitting
        return chosen

    def _given(self, chosen: Mapping[str, int]) -> int:
        """Return how many of the axes that may be left out have another value."""
        return sum(chosen.get(name, at) != at for name, at in self._plain.items())

    def _gain(self, chosen: dict[str, int], name: str) -> Any:
        """Return, for each value of an axis, how many missing combinations occur if it is added to the values chosen."""
        gain = np.zeros(len(self._axes[name]))
        for group in self._groups_of[name]:
            if all(each == name or each in chosen for each in group):
                gain += self._missing[group][tuple(slice(None) if each == name else chosen[each] for each in group)]
        return gain

    def _all_possible(self, group: tuple[str, ...]) -> np.ndarray:
        """Return which combinations of the values of some axes can occur, as an array with an axis for each of them."""
        shape = tuple(len(self._axes[name]) for name in group)
        fitting = [self._possible(self._row(dict(zip(group, at, strict=True)))) for at in np.ndindex(*shape)]
        return np.asarray(fitting, dtype=bool).reshape(shape)

    def _row(self, chosen: Mapping[str, int]) -> Row:
        return {name: self._axes[name][at] for name, at in chosen.items()}
