"""Schedules: learning rates that rise while the optimiser warms up, and then fall."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from ..ops import check


def warmup_cosine(peak: float, *, warmup: int, total: int, floor: float = 0.0) -> Callable[[int], float]:
    """Return a learning rate that rises linearly to ``peak``, and falls to ``floor`` along half a cosine.

    The rate of step t is peak (t + 1) / (warmup + 1) before step ``warmup``, at which it is ``peak``;
    floor + (peak - floor) (1 + cos(pi (t - warmup) / (total - warmup))) / 2 up to step ``total``; and ``floor`` from there on.

    Source: Loshchilov and Hutter 2017, equation 5, without restarts. Raises TypeError for a setting that is not a number,
    ValueError unless 0 <= warmup < total and 0 <= floor <= peak. Can be pickled.

    >>> import mha_core as mha
    >>> rate = mha.warmup_cosine(0.4, warmup=3, total=7)
    >>> [round(rate(t), 3) for t in range(8)]
    [0.1, 0.2, 0.3, 0.4, 0.341, 0.2, 0.059, 0.0]
    """
    return _Warmup(peak, warmup, total, floor, _cosine)


def warmup_linear(peak: float, *, warmup: int, total: int, floor: float = 0.0) -> Callable[[int], float]:
    """Return a learning rate that rises linearly to ``peak`` at step ``warmup``, and falls linearly to ``floor`` at ``total``.

    The rate of step t is peak (t + 1) / (warmup + 1) before step ``warmup``. Raises as ``warmup_cosine``. Can be pickled.

    >>> import mha_core as mha
    >>> rate = mha.warmup_linear(0.4, warmup=3, total=7)
    >>> [round(rate(t), 3) for t in range(8)]
    [0.1, 0.2, 0.3, 0.4, 0.3, 0.2, 0.1, 0.0]
    """
    return _Warmup(peak, warmup, total, floor, _linear)


def _cosine(progress: float) -> float:
    return (1 + math.cos(math.pi * progress)) / 2


def _linear(progress: float) -> float:
    return 1 - progress


@dataclass(frozen=True)
class _Warmup:
    """A rise, and then a fall along ``curve``, a function from [0, 1] to [1, 0]."""

    peak: float
    warmup: int
    total: int
    floor: float
    curve: Callable[[float], float]

    def __post_init__(self) -> None:
        check.at_least_zero("peak", self.peak)
        check.integer("warmup", self.warmup, 0)
        check.integer("total", self.total, self.warmup + 1)
        if check.at_least_zero("floor", self.floor) > self.peak:
            raise ValueError(f"floor is {self.floor}; expected at most peak = {self.peak}")

    def __call__(self, step: int) -> float:
        """Return the learning rate of a step, which counts from 0."""
        if step < self.warmup:
            return self.peak * (step + 1) / (self.warmup + 1)
        progress = min(1.0, (step - self.warmup) / (self.total - self.warmup))
        return self.floor + (self.peak - self.floor) * self.curve(progress)
