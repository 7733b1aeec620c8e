"""``verify``: compare the results of kernels with the algebra."""

from __future__ import annotations

import math
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

from ..algebra import rounding
from ..algebra.arrays import Array, is_array
from ..dispatch.context import demanding, watched_by
from ..dispatch.errors import KernelDivergence
from ..dispatch.registry import registry
from . import check
from .operation import PendingCall
from .tree import arrays_in


@dataclass
class Verification:
    """The record that ``verify`` keeps of its comparisons."""

    sample: float
    seed: int
    calls: int = 0
    """Number of calls of kernels, compared or not."""
    checked: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Number of compared calls, by (operation, kernel)."""


@contextmanager
def verify(sample: float = 1.0, *, seed: int | None = None) -> Iterator[Verification]:
    """Compare the results of kernels in this context with the algebra.

    Parameters
    ----------
    sample : float in [0, 1]
        The share of the calls that are compared.
    seed : int
        Determines which calls are compared. By default it is random; the error reports it.

    Raises
    ------
    KernelDivergence
        If the two differ by more than rounding explains (``algebra/rounding.py``). The error contains the arguments.
    ValueError
        For a sample outside [0, 1].

    Examples
    --------
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
        self._lock = threading.Lock()  # the threads of a backend may share one context

    def __call__(self, pending: PendingCall) -> Any:
        kernel = pending.decision.kernel
        if kernel is None:
            return pending.compute()
        with self._lock:
            self.done.calls += 1
            number, chosen = self.done.calls, self._draw() < self.done.sample
        if not chosen:
            return pending.compute()
        with demanding(algebra_only=True), watched_by(None):  # before the kernel, which might write to its arguments
            expected = pending.algebra()
            compared = list(_compared(pending, expected))
        actual = pending.compute()
        if compared and isinstance(expected, tuple) and not (isinstance(actual, tuple) and len(actual) == len(expected)):
            raise self._divergence(
                pending, number, f"it returned a {type(actual).__name__}; expected a state", actual, expected
            )
        for name, wanted, bound, read in compared:
            reason = _difference(pending, name, read(actual), wanted, bound)
            if reason is not None:
                raise self._divergence(pending, number, reason, actual, expected)
        with self._lock:
            self.done.checked[pending.call.op, kernel.name] += 1
        return actual

    def _divergence(self, pending: PendingCall, number: int, reason: str, actual: Any, expected: Any) -> KernelDivergence:
        call, kernel = pending.call, pending.decision.kernel
        assert kernel is not None
        shapes = ", ".join(f"{name} {shape}" for name, shape in call.shapes)
        options = {name: _shown(value) for name, value in pending.options.items() if name != "problem" and value is not None}
        owner = registry().owner(kernel)
        error = KernelDivergence(
            f"kernel {kernel.name!r} for {call.op} on {kernel.backend} ({owner}) does not agree with the algebra: {reason}\n"
            f"  arrays    {shapes}; {call.dtype}{'' if call.device is None else f' on {call.device}'}\n"
            f"  features  {', '.join(sorted(call.features)) or 'none'}\n"
            f"  options   {options or 'none'}\n"
            f"  again     kernel call {number} under verify(sample={self.done.sample}, seed={self.done.seed}); "
            "its arrays are this error's .arguments, the results .actual and .expected"
        )
        error.call, error.arguments, error.options = call, pending.arguments, pending.options
        error.actual, error.expected = actual, expected
        return error


def _shown(value: Any) -> Any:
    """Return an option as a message shows it: only the name of its type if it contains arrays."""
    return type(value).__name__ if any(True for _ in arrays_in(value)) else value


def _compared(pending: PendingCall, expected: Any) -> Iterator[tuple[str, Array, Array, Callable[[Any], Any]]]:
    """Yield (name, expected, bound, function that reads the actual) for each array in the results."""
    xp = pending.backend.xp
    if pending.call.op == "attention":
        bound = rounding.attention(pending.options["problem"], expected)
        yield "out", expected.out, bound.out, lambda actual: actual[0]
        if "lse" in pending.call.features:
            yield "lse", expected.lse, bound.lse, lambda actual: actual[1]
    elif isinstance(expected, tuple):
        labels = getattr(expected, "_fields", range(len(expected)))
        for at, (label, part, wide) in enumerate(zip(labels, expected, _in_float64(pending, expected), strict=True)):
            if part is not None:
                yield str(label), part, _bound_from_float64(pending, part, wide), itemgetter(at)
    elif pending.again is not None:
        yield "", expected, _bound_from_float64(pending, expected, _in_float64(pending, (expected,))[0]), lambda actual: actual
    else:
        bounded = rounding.BOUNDS[pending.call.op]
        yield "", expected, bounded(xp, expected, *pending.arguments.values(), **pending.options), lambda actual: actual


def _in_float64(pending: PendingCall, expected: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return results computed in float64; None for those that are in float64 already, or without a wider dtype."""
    xp, backend = pending.backend.xp, pending.backend
    if pending.again is None or not hasattr(xp, "float64") or all(x is None or x.dtype == xp.float64 for x in expected):
        return (None,) * len(expected)
    wide = pending.again(lambda x: xp.astype(x, xp.float64) if backend.is_floating(x.dtype) else x)
    return wide if isinstance(wide, tuple) else (wide,)


def _bound_from_float64(pending: PendingCall, expected: Array, wide: Array | None) -> Array:
    """Return a multiple of the algebra's own distance from float64, row by row: each operation amplifies earlier rounding.

    For float64, or without a wider dtype, only the rounding of the result is known.
    """
    xp = pending.backend.xp
    rounded = rounding.by_row(xp, expected, 64)
    if wide is None or wide.dtype != xp.float64:
        return 64 * rounded
    error = xp.astype(xp.abs(xp.astype(expected, xp.float64) - wide), rounded.dtype)
    return rounded + 8 * xp.max(error, axis=-1, keepdims=True)


def _difference(pending: PendingCall, name: str, actual: Any, expected: Array, bound: Array) -> str | None:
    """Return what is wrong, at the worst place; None if rounding explains every difference.

    NaN and infinity must be in both, except in attention where values that some queries do not see are not finite.
    """
    xp, label = pending.backend.xp, name or "the result"
    if not is_array(actual):
        return f"{label} is {type(actual).__name__}; expected an array"
    if tuple(actual.shape) != tuple(expected.shape) or actual.dtype != expected.dtype:
        actual_form, expected_form = (f"{tuple(x.shape)} of {x.dtype}" for x in (actual, expected))
        return f"{label} is {actual_form}; expected {expected_form}"
    if 0 in expected.shape:
        return None
    a, e = (xp.astype(x, bound.dtype) for x in (actual, expected))
    finite = xp.isfinite(a) & xp.isfinite(e)
    apart = xp.abs(xp.where(finite, a, 0.0) - xp.where(finite, e, 0.0))
    if pending.call.op == "attention":
        excess = xp.where(xp.isfinite(a) == xp.isfinite(e), apart / bound, math.inf)
        excess = xp.where(xp.isnan(bound), 0.0, excess)
    else:
        alike = finite | (a == e) | (xp.isnan(a) & xp.isnan(e))
        excess = xp.where(alike, xp.where(xp.isfinite(bound), apart / bound, 0.0), math.inf)
    flat = xp.reshape(xp.where(xp.isnan(excess), 0.0, excess), (-1,))

    def number(x: Array, at: int) -> float:
        return float(pending.backend.to_numpy(xp.reshape(x, (-1,))[at : at + 1])[0])

    worst = int(pending.backend.to_numpy(xp.argmax(flat, axis=0, keepdims=True))[0])
    if number(flat, worst) <= 1:
        return None
    place: list[int] = []
    quotient = worst
    for size in reversed(expected.shape):
        quotient, at = divmod(quotient, size)
        place.insert(0, at)
    numbers = f"is {number(a, worst):.9g}; expected {number(e, worst):.9g}, give or take {number(bound, worst):.2g}"
    return f"{name}{place} {numbers}"
