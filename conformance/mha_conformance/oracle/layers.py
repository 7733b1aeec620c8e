"""The steps of layers in NumPy float64, and bounds on the errors of layers in a narrower dtype.

A bound is found by trying: the layer is computed a few times with the result of every step moved at random, by up to the error
that this step may have in the dtype (as in stochastic arithmetic, Vignes 2004). What the result moves by, times ``SAFETY``, is
allowed. Errors of one step are those of independent roundings, u sqrt(sum of squares), in the dtype of its result; sums of n
terms, and the norms, also have the error of a sum in any order in the dtype of the scores.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from . import reference, tolerance
from .attention import Floats, attention

SAFETY = 3.0
_STABLE = 0.15
"""A row that moves by a greater share of its largest feature may end anywhere: a few trials say too little about it."""


def trials(dtype: str) -> int:
    """Return how often a layer is computed with moved steps.

    Half precision needs more: scores of a large x are in the thousands, where one rounding may choose another key, and four
    trials missed that in 2 of 1000 encoder layers.
    """
    return 16 if tolerance.UNIT_ROUNDOFF[dtype] > 1e-4 else 4


@dataclass(frozen=True)
class Steps:
    """The formulas of the steps of layers. ``rng`` None: exactly."""

    dtype: str = "float64"
    rounds_weights: bool = False
    rng: np.random.Generator | None = None

    def _moved(self, y: Floats, error: Callable[[float, float], Any]) -> Floats:
        """Return y moved by up to ``error``, a function of the unit roundoffs of the dtype and of the dtype of the scores.

        A subnormal result may also be two roundings of half the smallest number away.
        """
        if self.rng is None:
            return y
        u, wide = (tolerance.UNIT_ROUNDOFF[dtype] for dtype in (self.dtype, tolerance.compute_dtype(self.dtype)))
        return y + (error(u, wide) + tolerance.SMALLEST[self.dtype]) * self.rng.uniform(-1, 1, size=y.shape)

    def linear(self, x: Floats, w: Floats, b: Floats | None) -> Floats:
        y = reference.linear(x, w, b)

        def error(u: float, wide: float) -> Any:
            terms, bias = np.sqrt(x**2 @ w**2), np.abs(0.0 if b is None else b)  # b may be the first term of the sum
            return (2 * u + wide * np.sqrt(len(w))) * terms + wide * np.sqrt(len(w)) * bias + u * (bias + np.abs(y))

        return self._moved(y, error)

    def norm(self, x: Floats, norm: Any) -> Floats:
        if not hasattr(norm, "eps"):  # Identity
            return x
        centred = hasattr(norm, "bias")
        arguments = (x, norm.weight, norm.bias) if centred else (x, norm.weight)
        y = (reference.layer_norm if centred else reference.rms_norm)(*arguments, eps=norm.eps)

        def error(u: float, wide: float) -> Any:
            deviation = np.sqrt(x.var(axis=-1, keepdims=True) + norm.eps)
            of_mean = np.abs(x).max(axis=-1, keepdims=True, initial=0) / deviation if centred else 0.0
            weight = 1.0 if norm.weight is None else np.abs(norm.weight)
            bias = 0.0 if not centred or norm.bias is None else np.abs(norm.bias)
            return u * (2 * np.abs(y) + bias) + wide * (4 * np.abs(y) + 4 * of_mean * weight + bias)

        return self._moved(y, error)

    def activation(self, name: str, x: Floats) -> Floats:
        approximate = {"approximate": "tanh"} if name == "gelu_tanh" else {}
        y: Floats = getattr(reference, name.removesuffix("_tanh"))(x, **approximate)
        return self._moved(y, lambda u, wide: 2 * u * np.abs(y) + 4 * wide * np.abs(x))

    def rotary(self, x: Floats, rotary: Any, offset: Any) -> Floats:
        """Rotate x (..., heads, L, d) at positions from ``offset``, an int or an integer for each element of the batch."""
        y = reference.rotary(x, *tables(rotary, x.shape[-2], offset), interleaved=rotary.interleaved)
        return self._moved(y, lambda u, wide: 4 * u * np.abs(x).max(axis=-1, keepdims=True, initial=0))

    def attention(self, q: Floats, k: Floats, v: Floats, **options: Any) -> Floats:
        if self.rng is None:
            return attention(q, k, v, **options)[0]
        exact = tolerance.exact_attention(q, k, v, dtype=self.dtype, rounds_weights=self.rounds_weights, **options)
        return self._moved(exact.out, lambda u, wide: exact.out_bound)


def tables(rotary: Any, length: int, offset: Any) -> tuple[Floats, Floats]:
    """Return cos and sin of the positions from ``offset``."""
    at = np.arange(length) + (offset[..., None, None] if isinstance(offset, np.ndarray) else offset or 0)
    return rotary.cos[at], rotary.sin[at]


def bound_of(exact: Floats, moved: Iterable[Floats], dtype: str) -> Floats:
    """Return a bound on the error of each element, from what the result moved by in each trial."""
    furthest = np.zeros(exact.shape)
    for each in moved:
        furthest = np.maximum(furthest, np.abs(each - exact))
    rows = furthest.max(axis=-1, keepdims=True, initial=0)  # of the few features of a row, one may have moved little by chance
    rows = np.maximum(rows, rows.mean() if rows.size else 0)
    largest = np.abs(exact).max(axis=-1, keepdims=True, initial=0)
    rows = np.where(rows > _STABLE * largest, rows + largest, rows)  # a norm of nearly equal features may turn them altogether
    bound = SAFETY * rows + tolerance.UNIT_ROUNDOFF[dtype] * np.abs(exact) + tolerance.SMALLEST[dtype]
    return np.broadcast_to(bound, exact.shape)


def heads(x: Floats, count: int) -> Floats:
    """(..., length, count * d) -> (..., count, length, d)."""
    return np.swapaxes(x.reshape(*x.shape[:-1], count, x.shape[-1] // count), -2, -3)
