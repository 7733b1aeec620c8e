"""Records of a test besides its outcome: errors relative to their bounds, and numbers of kernel calls.

A process runs one test at a time, which may use several threads. When the test ends, its evidence is attached to its report, so
pytest-xdist workers send it too.
"""

from __future__ import annotations

import math
import operator
import threading
from collections.abc import Callable
from typing import Any

ERRORS, RUNS, REFUSALS, COVERED = "error over bound", "kernel runs", "kernel refusals", "covered"
KINDS: dict[str, Callable[[Any, Any], Any]] = {
    ERRORS: max,
    RUNS: operator.add,
    REFUSALS: lambda before, after: sorted({*before, *after}),
    COVERED: lambda before, after: after,
}
"""How two values of a record become one.

ERRORS: the greatest error over its bound by (operation, dtype). RUNS: the number of calls of a kernel by (operation, name).
REFUSALS: its reasons against calls, likewise.
COVERED: by (operation and kernel, dtype) the counts of a covering design: problems, floor, pairs and triples, of all.
"""
Values = dict[tuple[str, str], Any]


class Records(dict[str, Values]):
    """Values by kind and key."""

    def __init__(self) -> None:
        super().__init__({kind: {} for kind in KINDS})

    def add(self, kind: str, key: tuple[str, str], value: Any) -> None:
        values = self[kind]
        values[key] = KINDS[kind](values[key], value) if key in values else value


def nested(values: Values, convert: Callable[[Any], Any]) -> dict[str, dict[str, Any]]:
    """Return converted values by the first part of their keys, and then by the second, in order."""
    table: dict[str, dict[str, Any]] = {}
    for (name, second), value in sorted(values.items()):
        table.setdefault(name, {})[second] = convert(value)
    return table


class Evidence:
    """Collects what the running test records, from any thread."""

    def __init__(self) -> None:
        self._lock, self._records = threading.Lock(), Records()
        self._dtype: str | None = None

    def begin(self, dtype: str | None) -> None:
        """Begin a test that judges this dtype; with None, errors are recorded by the dtype of each compared array."""
        self._dtype = dtype
        self.take()

    def error(self, operation: str, dtype: str, ratio: float) -> None:
        """Record an error of ``ratio`` times its bound. ``dtype`` is that of the comparison; the test's own takes precedence.

        Half precision is compared in float32, which is exact.
        """
        self.add(ERRORS, (operation, self._dtype or dtype), math.inf if math.isnan(ratio) else ratio)

    def add(self, kind: str, key: tuple[str, str], value: Any) -> None:
        """Record a value of one of ``KINDS``."""
        with self._lock:
            self._records.add(kind, key, value)

    def take(self) -> Records:
        """Return all that was recorded since the test began, and forget it."""
        with self._lock:
            records, self._records = self._records, Records()
        return records


evidence = Evidence()
