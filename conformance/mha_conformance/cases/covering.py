"""Covering designs: few rows, in which every pair of values of different axes occurs, and every triple of chosen axes.

A greedy search finds the rows, as in AETG (Cohen, Dalal, Fredman and Patton 1997). Each row begins with a combination that has
not occurred yet, of axes drawn by chance: if all rows began with the axes that have most combinations, all would be crowded
alike. Every other axis then gets the value that adds most combinations. This alone would give rows in which almost everything
is given at once, so half of the rows give one option, or four, at most.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import reduce
from itertools import combinations
from typing import Any

import numpy as np

from .kinds import Row, least_of

_SHARE_ALONE = 0.25
"""The share of rows that give two axes alone, until all have been given so."""
_TRIES = 4
"""Orders of the axes that are tried before a combination counts as impossible."""


class Covering:
    """An iterable of the rows of a covering design, in random order: if it is cut short, another seed tries other rows.

    Parameters
    ----------
    axes : the values of each axis
    rng : decides between values that add equally many
    possible : function of some of a row's values, kinds by their least; returns False if no row can contain them
    triples : axes of which every triple of values must occur
    plain : the value of some axes that means "not given"; a row gives few of them, or as many as add combinations
    alone : axes of ``plain`` of which every two are also given without the others, with values that are drawn
    usual : values of other axes, which half of these rows have: implementations often have a way of their own for them
    """

    def __init__(
        self,
        axes: Mapping[str, Sequence[Any]],
        rng: np.random.Generator,
        *,
        possible: Callable[[Row], bool] = lambda row: True,
        triples: Iterable[tuple[str, ...]] = (),
        plain: Mapping[str, Any] | None = None,
        alone: Iterable[str] = (),
        usual: Mapping[str, Any] | None = None,
    ) -> None:
        self._axes, self._rng, self._possible = axes, rng, possible
        self._least = {name: [least_of(value) for value in values] for name, values in axes.items()}
        self._plain, self._usual = (
            {name: list(axes[name]).index(value) for name, value in (values or {}).items() if value in axes.get(name, ())}
            for values in (plain, usual)
        )
        may_be_given = [name for name in alone if name in self._plain and len(axes[name]) > 1]
        self._alone = list(combinations(may_be_given, 2))
        rng.shuffle(self._alone)
        groups = [group for group in triples if set(group) <= set(axes)]
        sizes = [len(values) for values in axes.values()]
        self._first = dict(zip(axes, np.cumsum([0, *sizes[:-1]]).tolist(), strict=True))
        pairs = np.zeros((sum(sizes), sum(sizes)), dtype=bool)
        for one, other in combinations(axes, 2):
            pairs[self._places(one), self._places(other)] = self._all_possible((one, other))
        self._pairs: np.ndarray = pairs | pairs.T
        self._triples = {group: self._all_possible(group) for group in groups}
        self._triples_of = {name: [group for group in groups if name in group] for name in axes}
        self._can_occur = [self._pairs.copy(), *(missing.copy() for missing in self._triples.values())]

    @property
    def missing(self) -> int:
        """Number of combinations that have not occurred in a row yet."""
        return int(self._pairs.sum()) // 2 + sum(int(missing.sum()) for missing in self._triples.values())

    def counted(self, axes: Mapping[str, Sequence[Any]] | None = None) -> Counted:
        """Return counts of the combinations of these values of the axes, by default of all; no row has been counted yet."""
        places = {name: {value: at for at, value in enumerate(values)} for name, values in self._axes.items()}
        allowed = {
            name: np.array([axes is None or value in axes[name] for value in values]) for name, values in self._axes.items()
        }
        can = [self._can_occur[0] & np.logical_and.outer(*[np.concatenate([*allowed.values()])] * 2)]
        for group, triples in zip(self._triples, self._can_occur[1:], strict=True):
            can.append(triples & reduce(np.logical_and.outer, [allowed[name] for name in group]))
        return Counted(places, self._first, [*self._triples], can)

    def __iter__(self) -> Iterator[Row]:
        while self._alone or self.missing:
            two = self._alone.pop() if self._alone and (self._rng.random() < _SHARE_ALONE or not self.missing) else ()
            lacking = {} if two else self._a_missing_one()
            for _ in range(_TRIES):
                usual = self._usual if two and self._rng.random() < 0.5 else {}
                first = lacking or usual | {name: self._a_given(name) for name in two}
                chosen = self._completed(first, self._rng, most=len(two) or None)
                if chosen is not None:
                    break
            else:
                if lacking:
                    self._leave_out(lacking)
                continue
            for missing, at in zip(
                [self._pairs, *self._triples.values()], _at(chosen, self._first, self._triples), strict=True
            ):
                missing[at] = False
            yield self._row(chosen)

    def random(self, rng: np.random.Generator) -> Iterator[Row]:
        """Yield random rows without end."""
        while True:
            chosen = self._completed({}, rng)
            if chosen is None:
                return
            yield self._row(chosen)

    def _a_given(self, name: str) -> int:
        """Return the index of a value of an axis that means "given"."""
        return int(self._rng.choice([at for at in range(len(self._axes[name])) if at != self._plain[name]]))

    def _a_missing_one(self) -> dict[str, int]:
        """Return a missing combination: axes are drawn by the roots of how many they lack."""
        names, starts = [*self._axes], [*self._first.values()]
        of_pairs = np.triu(np.add.reduceat(np.add.reduceat(self._pairs, starts, axis=0, dtype=int), starts, axis=1))
        left = np.sqrt([*of_pairs.ravel(), *(missing.sum() for missing in self._triples.values())])
        at = int(self._rng.choice(len(left), p=left / left.sum()))
        if at >= of_pairs.size:
            group = [*self._triples][at - of_pairs.size]
            missing = self._triples[group]
        else:
            group = (names[at // len(names)], names[at % len(names)])
            missing = self._pairs[self._places(group[0]), self._places(group[1])]
        first = np.unravel_index(self._rng.choice(np.flatnonzero(missing)), missing.shape)
        return {name: int(at) for name, at in zip(group, first, strict=True)}

    def _leave_out(self, combination: dict[str, int]) -> None:
        """Count out a combination that turned out to be impossible."""
        if len(combination) == 2:
            one, other = (self._first[name] + at for name, at in combination.items())
            for pairs in (self._pairs, self._can_occur[0]):
                pairs[one, other] = pairs[other, one] = False
        else:
            group, at = tuple(combination), tuple(combination.values())
            self._triples[group][at] = self._can_occur[1 + [*self._triples].index(group)][at] = False

    def _completed(self, first: dict[str, int], rng: np.random.Generator, most: int | None = None) -> dict[str, int] | None:
        """Return the indices of a whole row's values that contains those already chosen; None if none was found.

        It gives no more than ``most`` of the axes that may be left out, if they may; None: a few or all.
        """
        chosen, row = dict(first), self._least_row(first)
        rest = [name for name in self._axes if name not in chosen]
        rng.shuffle(rest)
        most = rng.choice([1, 4, *[len(self._plain)] * 3]) if most is None else most
        for name in rest:
            gain = self._gain(chosen, name) + rng.random(len(self._axes[name]))  # values that gain equally in any order
            if name in self._plain and self._given(chosen) >= most:
                gain[self._plain[name]] = np.inf
            for at in np.argsort(-gain).tolist():
                row[name] = self._least[name][at]
                if self._possible(row):
                    break
            else:
                return None
            chosen[name] = at
        return chosen

    def _given(self, chosen: Mapping[str, int]) -> int:
        """Return how many of the axes that may be left out have another value."""
        return sum(chosen.get(name, at) != at for name, at in self._plain.items())

    def _gain(self, chosen: dict[str, int], name: str) -> Any:
        """Return, for each value of an axis, how many missing combinations occur if it is added to the values chosen."""
        gain = self._pairs[self._places(name)][:, [self._first[each] + at for each, at in chosen.items()]].sum(axis=1)
        for group in self._triples_of[name]:
            if all(each == name or each in chosen for each in group):
                gain += self._triples[group][tuple(slice(None) if each == name else chosen[each] for each in group)]
        return gain

    def _places(self, name: str) -> slice:
        """Return where the values of an axis are in ``_pairs``."""
        return slice(self._first[name], self._first[name] + len(self._axes[name]))

    def _all_possible(self, group: tuple[str, ...]) -> np.ndarray:
        """Return which combinations of the values of some axes can occur, as an array with an axis for each of them."""
        shape = tuple(len(self._axes[name]) for name in group)
        fitting = [self._possible(self._least_row(dict(zip(group, at, strict=True)))) for at in np.ndindex(*shape)]
        return np.asarray(fitting, dtype=bool).reshape(shape)

    def _row(self, chosen: Mapping[str, int]) -> Row:
        return {name: self._axes[name][at] for name, at in chosen.items()}

    def _least_row(self, chosen: Mapping[str, int]) -> Row:
        return {name: self._least[name][at] for name, at in chosen.items()}


class Counted:
    """The combinations that occurred in rows, of those that can occur."""

    def __init__(
        self,
        places: Mapping[str, Mapping[Any, int]],
        first: Mapping[str, int],
        groups: Sequence[tuple[str, ...]],
        can_occur: Sequence[np.ndarray],
    ) -> None:
        self._places, self._first, self._groups, self._can_occur = places, first, groups, can_occur
        self._occurred = [np.zeros_like(can) for can in can_occur]

    def add(self, row: Row) -> None:
        """Count the combinations of a row; a value that the design does not have counts for nothing."""
        chosen = {name: places[row[name]] for name, places in self._places.items() if row[name] in places}
        for occurred, at in zip(self._occurred, _at(chosen, self._first, self._groups), strict=True):
            occurred[at] = True

    def shares(self) -> dict[str, tuple[int, int]]:
        """Return how many pairs, and triples, occurred in the rows that were counted, and how many can occur."""
        found = [occurred & can for occurred, can in zip(self._occurred, self._can_occur, strict=True)]
        counts = ([int(x.sum()) for x in each] for each in (found, self._can_occur))
        (pairs, *triples), (all_pairs, *all_triples) = counts
        return {"pairs": (pairs // 2, all_pairs // 2), "triples": (sum(triples), sum(all_triples))}


def _at(chosen: Mapping[str, int], first: Mapping[str, int], groups: Iterable[tuple[str, ...]]) -> list[Any]:
    """Return where the combinations of some values are among all pairs, and among the triples of each group."""
    places = [first[name] + at for name, at in chosen.items()]
    whole = (tuple(chosen[name] for name in group) if all(name in chosen for name in group) else () for group in groups)
    return [np.ix_(places, places), *(at or (slice(0),) for at in whole)]
