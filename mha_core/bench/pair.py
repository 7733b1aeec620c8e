"""Two pieces of work timed in one process, in turns: sound on one thread, where no library's threads spin beside the other."""

from __future__ import annotations

import statistics
import time
from functools import partial

from .work import Work, calibrated, timed


def cost(ours: Work, plain: Work, *, sample: float = 0.01, seconds: float = 1.0, least: int = 3, most: int = 31) -> float:
    """Time of the one over time of the other: the median over rounds of ours, plain, plain, ours.

    sample: seconds that a turn takes at least. seconds: after which no round begins, once the ``least`` of them are done.
    """
    first, second = (calibrated(partial(timed, work), sample) for work in (ours, plain))
    ratios: list[float] = []
    end = time.monotonic() + seconds
    while len(ratios) < least or (len(ratios) < most and time.monotonic() < end):
        before = timed(ours, first)
        between = timed(plain, second) + timed(plain, second)
        ratios.append((before + timed(ours, first)) / first / (between / second))
    return statistics.median(ratios)
