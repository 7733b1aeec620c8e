"""Covering designs: few rows, in which every pair of values of different axes occurs, and every triple of chosen axes.

The rows are found greedily, as in AETG (Cohen, Dalal, Fredman and Patton 1997): each begins with a combination that has not
occurred yet, and takes for every other axis the value that adds most combinations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import combinations, product
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
    """

    def __init__(
        self,
        axes: Mapping[str, Sequence[Any]],
        rng: np.random.Generator,
        *,
        possible: Callable[[Row], bool] = lambda row: True,
        triples: Iterable[tuple[str, str, str]] = (),
    ) -> None:
        self._axes, self._rng, self._possible = axes, rng, possible
        groups = [*combinations(axes, 2), *(group for group in triples if set(group) <= set(axes))]
        self._missing = {group: dict.fromkeys(self._shuffled(group)) for group in groups}
        self._groups_of = {name: [group for group in groups if name in group] for name in axes}
        self.combinations = self.missing
        """Number of combinations that can occur."""

    @property
    def missing(self) -> int:
        """Number of combinations that have not occurred yet."""
        return sum(map(len, self._missing.values()))

    def __iter__(self) -> Iterator[Row]:
        while any(self._missing.values()):
            group = max(self._missing, key=lambda one: len(self._missing[one]))
            first = next(iter(self._missing[group]))
            for _ in range(_TRIES):
                chosen = self._completed(dict(zip(group, first, strict=True)))
                if chosen is not None:
                    break
            else:
                del self._missing[group][first]
                self.combinations -= 1
                continue
            for each, missing in self._missing.items():
                missing.pop(tuple(chosen[name] for name in each), None)
            yield self._row(chosen)

    def _shuffled(self, group: tuple[str, ...]) -> list[tuple[int, ...]]:
        """Return the combinations of the values of some axes that can occur, as indices in random order."""
        every = list(product(*(range(len(self._axes[name])) for name in group)))
        self._rng.shuffle(every)
        return [tuple(map(int, at)) for at in every if self._possible(self._row(dict(zip(group, at, strict=True))))]

    def _completed(self, chosen: dict[str, int]) -> dict[str, int] | None:
        """Return the indices of a whole row's values that contains those already chosen; None if none was found."""
        rest = [name for name in self._axes if name not in chosen]
        self._rng.shuffle(rest)
        for name in rest:
            order = self._rng.permutation(len(self._axes[name]))
            ranked = sorted((int(at) for at in order), key=lambda at: -self._gain(chosen, name, at))
            found = next((at for at in ranked if self._possible(self._row(chosen | {name: at}))), None)
            if found is None:
                return None
            chosen[name] = found
        return chosen

    def _gain(self, chosen: dict[str, int], name: str, at: int) -> int:
        """Return how many missing combinations occur if this value is added to those already chosen."""
        both = chosen | {name: at}
        return sum(
            tuple(both[each] for each in group) in self._missing[group]
            for group in self._groups_of[name]
            if both.keys() >= {*group}
        )

    def _row(self, chosen: Mapping[str, int]) -> Row:
        return {name: self._axes[name][at] for name, at in chosen.items()}
