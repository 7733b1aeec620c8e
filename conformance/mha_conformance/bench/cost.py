"""Time of a call relative to plain NumPy, both timed in turns in one process.

Reliable on one thread only: with more, threads of one library that keep spinning slow down the other.
"""

from __future__ import annotations

import statistics
import time
from functools import partial

from .timing import Work, calibrated, timed


def cost(ours: Work, plain: Work, *, sample: float = 0.01, seconds: float = 1.0, least: int = 3, most: int = 31) -> float:
    """Return the time of ``ours`` divided by that of ``plain``: the median over rounds of ours, plain, plain, ours.

    Parameters
    ----------
    sample
        Least seconds per turn.
    seconds
        Time limit: no further round starts after it, once ``least`` rounds are done.
    least, most
        Least and greatest number of rounds.
    """
    first, second = (calibrated(partial(timed, work), sample) for work in (ours, plain))
    ratios: list[float] = []
    end = time.monotonic() + seconds
    while len(ratios) < least or (len(ratios) < most and time.monotonic() < end):
        before = timed(ours, first)
        between = timed(plain, second) + timed(plain, second)
        ratios.append((before + timed(ours, first)) / first / (between / second))
    return statistics.median(ratios)
