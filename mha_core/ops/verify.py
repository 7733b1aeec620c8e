"""Every kernel shadowed by the algebra: ``verify``."""

from __future__ import annotations

import math
import random
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from ..algebra import rounding
from ..algebra.arrays import Array, Namespace
from ..dispatch.context import demanding, watched_by
from ..dispatch.errors import KernelDivergence
from ..dispatch.registry import registry
from . import check
from .operation import Run


@dataclass
class Verification:
    """What ``verify`` did. calls: of kernels, sampled or not. checked: how often each (operation, kernel) was compared."""

    sample: float
    seed: int
    calls: int = 0
    checked: Counter[tuple[str, str]] = field(default_factory=Counter)


@contextmanager
def verify(sample: float = 1.0, *, seed: int | None = None) -> Iterator[Verification]:
    """Compute with the algebra too whatever a kernel computes in this context, and compare.

    Parameters
    ----------
    sample : the share of calls that is compared, in [0, 1]
    seed : which calls these are; drawn anew by default, and told in the error

    Raises
    ------
    KernelDivergence, where the two differ by more than rounding explains (``algebra/rounding.py``), with the arguments on it;
    ValueError for a sample outside [0, 1].

    >>> import numpy as np, mha_core as mha
    >>> with mha.verify() as done:
    ...     y = mha.gelu(np.linspace(-3, 3, 7, dtype=np.float32))
    >>> done.checked
    Counter({('gelu', 'tiles'): 1})
    """
    if not 0 <= check.number("sample", sample) <= 1:
        raise ValueError(f"sample is {sample}; expected a share in [0, 1]")
    seed = random.SystemRandom().randrange(1 << 32) if seed is None else check.integer("seed", seed, 0)
    verification = Verification(sample, seed)
    with watched_by(_Shadow(verification)):
        yield verification


class _Shadow:
    def __init__(self, verification: Verification) -> None:
        self.done = verification
        self._draw = random.Random(verification.seed).random
        self._lock = threading.Lock()  # one context may be shared by the threads of a backend

    def __call__(self, run: Run) -> Any:
        kernel = run.decision.kernel
        if kernel is None:
            return run.compute()
        with self._lock:
            self.done.calls += 1
            number, chosen = self.done.calls, self._draw() < self.done.sample
        actual = run.compute()
        if not chosen:
            return actual
        with demanding(algebra_only=True), watched_by(None):
            expected = run.algebra()
        for name, got, wanted, bound in _compared(run, actual, expected):
            reason = _difference(run.backend.xp, got, wanted, bound)
            if reason is not None:
                raise self._divergence(run, number, f"{name}{reason}", actual, expected)
        with self._lock:
            self.done.checked[run.call.op, kernel.name] += 1
        return actual

    def _divergence(self, run: Run, number: int, reason: str, actual: Any, expected: Any) -> KernelDivergence:
        call, kernel = run.call, run.decision.kernel
        assert kernel is not None
        shapes = ", ".join(f"{name} {shape}" for name, shape in call.shapes)
        options = {name: value for name, value in run.options.items() if name != "problem" and value is not None}
        owner = registry().owner(kernel)
        error = KernelDivergence(
            f"kernel {kernel.name!r} for {call.op} on {kernel.backend} ({owner}) is not the algebra: {reason}\n"
            f"  arrays    {shapes}; {call.dtype} on {call.device}\n"
            f"  features  {', '.join(sorted(call.features)) or 'none'}\n"
            f"  options   {options or 'none'}\n"
            f"  again     call {number} of kernels under verify(sample={self.done.sample}, seed={self.done.seed}); "
            "its arrays are this error's .arguments, the results .actual and .expected"
        )
        error.call, error.arguments, error.options = call, run.arguments, run.options
        error.actual, error.expected = actual, expected
        return error


def _compared(run: Run, actual: Any, expected: Any) -> Iterator[tuple[str, Array, Array, Array]]:
    """(name, actual, expected, bound) of each array in the results."""
    if run.call.op == "attention":
        bound = rounding.attention(run.options["problem"], expected)
        yield "out", actual.out, expected.out, bound.out
        if "lse" in run.call.features:
            yield "lse", actual.lse, expected.lse, bound.lse
        return
    xp = run.backend.xp
    bounded = rounding.BOUNDS.get(run.call.op)
    arguments = run.arguments.values()
    yield "", actual, expected, bounded(xp, expected, *arguments, **run.options) if bounded else rounding.by_row(xp, expected)


def _difference(xp: Namespace, actual: Array, expected: Array, bound: Array) -> str | None:
    """What is wrong, at the worst place; None where rounding explains all."""
    if tuple(actual.shape) != tuple(expected.shape) or actual.dtype != expected.dtype:
        got, wanted = (f"{tuple(x.shape)} of {x.dtype}" for x in (actual, expected))
        return f" is {got}; expected {wanted}"
    if 0 in expected.shape:
        return None
    a, e = (xp.astype(x, bound.dtype) for x in (actual, expected))
    same = (a == e) | ((a != a) & (e != e))  # infinities, and NaN in both
    bound = xp.where(bound != bound, math.inf, bound)  # what meets NaN is not bounded
    excess = xp.where(same | (bound == math.inf), 0.0, xp.abs(a - e) / bound)
    excess = xp.where(excess != excess, math.inf, excess)
    flat = xp.reshape(excess, (-1,))
    worst = int(xp.argmax(flat))
    if float(flat[worst]) <= 1:
        return None
    place: list[int] = []
    rest = worst
    for size in reversed(expected.shape):
        rest, at = divmod(rest, size)
        place.insert(0, at)
    is_, should, allowed = (float(xp.reshape(x, (-1,))[worst]) for x in (a, e, bound))
    return f"{place} is {is_:.9g}; expected {should:.9g}, give or take {allowed:.2g}"
