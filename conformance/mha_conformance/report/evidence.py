"""Records of a test besides its outcome: errors relative to their bounds, and numbers of kernel calls.

A process runs one test at a time, which may use several threads. When the test ends, its evidence is attached to its report, so
pytest-xdist workers send it too.
"""

from __future__ import annotations

import math
import threading

Errors = dict[tuple[str, str], float]
"""The greatest error over its bound by (operation, dtype)."""
Runs = dict[tuple[str, str], int]
"""Number of calls of a kernel, by (operation, name)."""
Covered = dict[tuple[str, str], tuple[int, int, int]]
"""By (operation and kernel, dtype): problems of the covering design, combinations of values that occurred in them, and all."""


class Evidence:
    """Collects what the running test records, from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.begin(None)

    def begin(self, dtype: str | None) -> None:
        """Begin a test that judges this dtype; with None, errors are recorded by the dtype of each compared array."""
        with self._lock:
            self._dtype = dtype
            self._errors: Errors = {}
            self._runs: Runs = {}
            self._covered: Covered = {}

    def error(self, operation: str, dtype: str, ratio: float) -> None:
        """Record an error of ``ratio`` times its bound. ``dtype`` is that of the comparison; the test's own takes precedence.

        Half precision is compared in float32, which is exact.
        """
        with self._lock:
            key = (operation, self._dtype or dtype)
            self._errors[key] = max(self._errors.get(key, 0.0), math.inf if math.isnan(ratio) else ratio)

    def runs(self, op: str, kernel: str, count: int) -> None:
        """Record that a kernel was called ``count`` times."""
        with self._lock:
            self._runs[op, kernel] = self._runs.get((op, kernel), 0) + count

    def covered(self, kernel: str, dtype: str, problems: int, occurred: int, every: int) -> None:
        """Record how much of a covering design was judged."""
        with self._lock:
            self._covered[kernel, dtype] = problems, occurred, every

    def take(self) -> tuple[Errors, Runs, Covered]:
        """Return all that was recorded since the test began, and forget it."""
        with self._lock:
            found = self._errors, self._runs, self._covered
            self._errors, self._runs, self._covered = {}, {}, {}
        return found


evidence = Evidence()
