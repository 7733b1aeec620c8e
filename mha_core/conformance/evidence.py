"""What a test leaves behind beside its outcome: how near it came to the bound, and how often a kernel was called.

One test runs at a time in a process, on as many threads as it likes. What it left is taken when it ends, and travels with its
report, so that the workers of pytest-xdist need no way of their own.
"""

from __future__ import annotations

import math
import threading

Errors = dict[tuple[str, str], float]
"""The greatest error over its bound by (operation, dtype)."""
Runs = dict[tuple[str, str], int]
"""How often a kernel was called, by (operation, name)."""


class Evidence:
    """Of the test that runs now."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.begin(None)

    def begin(self, dtype: str | None) -> None:
        """A test begins that judges this dtype; None: what it compares says which."""
        with self._lock:
            self._dtype = dtype
            self._errors: Errors = {}
            self._runs: Runs = {}

    def error(self, operation: str, dtype: str, ratio: float) -> None:
        """An answer was off by ``ratio`` times what it may be. The dtype is that of the comparison, the test's own wins.

        Half precision is compared in float32, which holds it.
        """
        with self._lock:
            key = (operation, self._dtype or dtype)
            self._errors[key] = max(self._errors.get(key, 0.0), math.inf if math.isnan(ratio) else ratio)

    def runs(self, op: str, kernel: str, count: int) -> None:
        """A kernel was called so often."""
        with self._lock:
            self._runs[op, kernel] = self._runs.get((op, kernel), 0) + count

    def take(self) -> tuple[Errors, Runs]:
        """All that was left since the test began."""
        with self._lock:
            found = self._errors, self._runs
            self._errors, self._runs = {}, {}
        return found


evidence = Evidence()
