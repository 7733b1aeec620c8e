"""Search for a smaller problem that fails the same check as a random problem.

Hypothesis would need strategies in place of the seeded generator that all random problems come from, and only the version of it
that found a failure could reproduce it; searching a few hundred small problems takes less code.
"""

from __future__ import annotations

import time
from dataclasses import replace

from ..cases.problems import Limits, RandomProblem
from .held import Judge
from .replay import DrawnProblem

SECONDS = 5.0
"""Time limit of the search."""
EACH = 40
"""Number of problems tried of each size: a few hundred in all."""
# (longest, widest, copies, masked, options, depth), the simplest first
_SIZES = [
    (1, 1, 1, 0.0, 0.0, 0), (2, 1, 1, 0.0, 0.0, 0), (1, 1, 1, 0.5, 0.2, 0), (2, 1, 1, 0.5, 0.2, 0), (2, 2, 2, 0.0, 0.0, 0),
    (2, 2, 2, 0.5, 0.3, 0), (3, 2, 1, 0.7, 0.3, 1), (4, 2, 2, 0.7, 0.3, 1), (6, 4, 2, 0.9, 0.3, 2),
]  # fmt: skip


def shrink(judge: Judge, drawn: DrawnProblem) -> tuple[DrawnProblem, Exception | None]:
    """Return the smallest problem found to fail the same check, and its error; if there is none, the given one and None."""
    end = time.monotonic() + SECONDS
    for longest, widest, copies, masked, options, depth in _SIZES:
        longest, widest = min(longest, drawn.limits.longest), min(widest, drawn.limits.widest)
        limits = Limits(drawn.limits.times, longest, widest, copies, masked, options, depth)
        tried = (replace(drawn, seed=seed, limits=limits) for seed in range(EACH))
        failing = [(one, error) for one in tried if time.monotonic() <= end and (error := one.error(judge)) is not None]
        if failing:
            return min(failing, key=lambda failure: _size(failure[0].problem()))
    return drawn, None


def _size(p: RandomProblem) -> float:
    """Return the count of numbers in a problem plus a tenth of the length of its description."""
    return p.query.size + p.key.size + p.value.size + len(str(p)) / 10
