"""Search for a smaller problem of a covering design that fails as well: axis by axis, the plainest value with which it does."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..cases.kinds import Row, least_of

SECONDS = 5.0
"""Time limit of the search, which decides nothing but how small the problem is."""


def smaller(
    row: Row,
    axes: Mapping[str, Sequence[Any]],
    possible: Callable[[Row], bool],
    error_of: Callable[[Row], Exception | None],
) -> tuple[Row, Exception | None]:
    """Return a plainer row whose problem fails too, and its error; the row itself and None if it does not fail alone.

    axes: the values of each axis, the plainest first. error_of: returns what the problem of a row raises, None if it is right.
    """
    error, end, last = error_of(row), time.monotonic() + SECONDS, None
    while error is not None and row != last:
        last = row
        for name, values in axes.items():
            for value in _plainer(row[name], [least_of(each) for each in values]):
                plainer = row | {name: value}
                failure = error_of(plainer) if possible(plainer) and time.monotonic() < end else None
                if failure is not None:
                    row, error = plainer, failure
                    break
    return row, error


def described(row: Row, axes: Mapping[str, Sequence[Any]]) -> str:
    """Return the values of a row that are not the plainest of their axis, as text."""
    given = {name: row[name] for name, values in axes.items() if row[name] != least_of(values[0])}
    return ", ".join(f"{name}={value}" for name, value in given.items()) or "the plainest of the design"


def _plainer(value: Any, values: Sequence[Any]) -> list[Any]:
    """Return the values of an axis that are plainer than one: those before it, and smaller numbers; the plainest first."""
    before = list(values[: values.index(value)] if value in values else values)
    if not _is_count(value):
        return before
    counts = [x for x in values if _is_count(x)]
    smaller_ones = {x for x in (*counts, value // 2, value - 1) if min(counts, default=value) <= x < value}
    return [*(x for x in before if not _is_count(x)), *sorted(smaller_ones)]


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
