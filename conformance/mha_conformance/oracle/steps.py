"""The steps of layers in NumPy float64 with their gradients, and bounds on the errors of layers in a narrower dtype.

Each step is recorded on a tape with the function that pulls a gradient back through it: a layer is written once, as a sequence
of steps.

A bound is found by trying: the layer is computed a few times with the result of every step, and every gradient, moved at random
by up to the error that this step may have in the dtype (as in stochastic arithmetic, Vignes 2004). What the result moves by,
times ``SAFETY``, is allowed. Errors of one step are those of independent roundings, u sqrt(sum of squares), in the dtype of its
result; sums of n terms, and the norms, also have the error of a sum in any order in the dtype of the scores.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from . import piece_gradients, reference, tolerance
from .attention import Floats, attention
from .attention_gradients import Bounded, by_bucket, gradient_bounds, summed_to

Named = dict[str, Floats]
SAFETY = 3.0
_DOUBT = 32
"""The error of an argument of relu, or of a number that is rounded to int8, in unit roundoffs of the greatest of its row."""
_STABLE = 0.15
"""A row that moves by a greater share of its largest feature may end anywhere: a few trials say too little about it."""


def trials(dtype: str) -> int:
    """Return how often a layer is computed with moved steps.

    Half precision needs more: scores of a large x are in the thousands, where one rounding may choose another key, and four
    trials missed that in 2 of 1000 encoder layers.
    """
    return 16 if tolerance.UNIT_ROUNDOFF[dtype] > 1e-4 else 4


@dataclass(frozen=True)
class Step:
    """A step on the tape."""

    result: Floats
    pull: Callable[[Floats], Named]
    """Returns the gradients of the inputs by name, from that of the result."""
    inputs: Mapping[str, Floats | None]


@dataclass(frozen=True)
class Steps:
    """The formulas of the steps of layers. ``rng`` None: exactly."""

    dtype: str = "float64"
    rounds_weights: bool = False
    rng: np.random.Generator | None = None
    side: int = 1
    """To which side arguments of relu that may have either sign are moved where its slope is taken."""
    tape: list[Step] = field(default_factory=list)

    def gradients(self, result: Floats, d: Floats, of: Mapping[str, Floats]) -> Named:
        """Return the gradients of some arrays by name, from that of a result, which must depend on them to have any."""
        received: dict[int, list[Floats]] = {id(result): [d]}
        for step in reversed(self.tape):
            terms = received.pop(id(step.result), None)
            for name, gradient in step.pull(self._sum(terms)).items() if terms else ():
                received.setdefault(id(step.inputs[name]), []).append(gradient)
        return {name: self._sum(received[id(x)]) for name, x in of.items() if id(x) in received}

    def _sum(self, terms: list[Floats]) -> Floats:
        total = np.sum(terms, axis=0)
        return self._moved(total, lambda u, wide: u * np.abs(terms).sum(axis=0)) if len(terms) > 1 else terms[0]

    def _moved(self, y: Floats, error: Callable[[float, float], Any]) -> Floats:
        """Return y moved by up to ``error``, a function of the unit roundoffs of the dtype and of the dtype of the scores.

        A subnormal result may also be two roundings of half the smallest number away, or 0. One beyond the largest number is
        NaN, and so is what follows from it: how a computation goes on from infinity is not known.
        """
        if self.rng is None:
            return y
        u, wide = (tolerance.UNIT_ROUNDOFF[dtype] for dtype in (self.dtype, tolerance.compute_dtype(self.dtype)))
        moved = y + (error(u, wide) + tolerance.least(self.dtype)) * self.rng.uniform(-1, 1, size=y.shape)
        return np.where(np.abs(moved) > tolerance.LARGEST[self.dtype], np.nan, moved)

    def _recorded(self, result: Floats, pull: Callable[[Floats], Named], **inputs: Floats | None) -> Floats:
        self.tape.append(Step(result, pull, inputs))
        return result

    def _piece(self, gradients: Callable[..., Mapping[str, Bounded]], result: Floats, **inputs: Any) -> Floats:
        """Record a piece: ``gradients`` returns the exact ones and their magnitudes, which they are moved by."""

        def moved(exact: Floats, magnitude: Floats) -> Floats:
            return self._moved(exact, lambda u, wide: wide * magnitude + u * np.abs(exact))

        def pull(d: Floats) -> Named:
            return {name: moved(*both) for name, both in gradients(d, **inputs).items()}

        return self._recorded(result, pull, **inputs)

    def linear(self, x: Floats, w: Any, b: Floats | None) -> Floats:
        if hasattr(w, "values"):
            return self._linear_int8(x, w, b)
        y = reference.linear(x, w, b)

        def error(u: float, wide: float) -> Any:
            terms, bias = np.sqrt(x**2 @ w**2), np.abs(0.0 if b is None else b)  # b may be the first term of the sum
            return (2 * u + wide * np.sqrt(len(w))) * terms + wide * np.sqrt(len(w)) * bias + u * (bias + np.abs(y))

        return self._piece(piece_gradients.linear, self._moved(y, error), x=x, w=w, b=b)

    def _linear_int8(self, x: Floats, w: Any, b: Floats | None) -> Floats:
        y = reference.linear_int8(x, w.values, w.scale, b, arithmetic="float64")

        def error(u: float, wide: float) -> Any:
            top = reference.tops_of_groups(x)
            steps = x * (127 / np.where(top == 0, 1, top))
            uncertain = np.rint(steps + 127 * _DOUBT * u) - np.rint(steps - 127 * _DOUBT * u)
            bias = np.abs(0.0 if b is None else b)
            of_steps = uncertain * (top / 127) @ np.abs(w.values.astype(np.float64)) * w.scale
            return of_steps + 4 * wide * (np.abs(y) + bias) + u * np.abs(y)

        return self._recorded(self._moved(y, error), lambda d: {}, x=x)

    def norm(self, x: Floats, norm: Any) -> Floats:
        if not hasattr(norm, "eps"):  # Identity
            return x
        centred = hasattr(norm, "bias")
        name, weights = ("layer_norm", {"bias": norm.bias}) if centred else ("rms_norm", {})
        weights |= {"weight": norm.weight}
        y = getattr(reference, name)(x, **weights, eps=norm.eps)

        def error(u: float, wide: float) -> Any:
            deviation = np.sqrt(x.var(axis=-1, keepdims=True) + norm.eps)
            of_mean = np.abs(x).max(axis=-1, keepdims=True, initial=0) / deviation if centred else 0.0
            weight = 1.0 if norm.weight is None else np.abs(norm.weight)
            bias = 0.0 if not centred or norm.bias is None else np.abs(norm.bias)
            return u * (2 * np.abs(y) + bias) + wide * (4 * np.abs(y) + 4 * of_mean * weight + bias)

        return self._piece(partial(piece_gradients.GRADIENTS[name], eps=norm.eps), self._moved(y, error), x=x, **weights)

    def activation(self, name: str, x: Floats) -> Floats:
        approximate = {"approximate": "tanh"} if name == "gelu_tanh" else {}
        name = name.removesuffix("_tanh")
        y: Floats = getattr(reference, name)(x, **approximate)
        moved = self._moved(y, lambda u, wide: 2 * u * np.abs(y) + 4 * wide * np.abs(x))
        gradients = partial(piece_gradients.GRADIENTS[name], **approximate)
        if name == "relu" and self.rng is not None:
            doubt = _DOUBT * tolerance.UNIT_ROUNDOFF[self.dtype] * np.abs(x).max(axis=-1, keepdims=True, initial=0)
            return self._piece(lambda d, x: gradients(d, x + self.side * doubt), moved, x=x)
        return self._piece(gradients, moved, x=x)

    def product(self, x: Floats, y: Floats) -> Floats:
        def times(a: Floats, b: Floats) -> Floats:
            return self._moved(a * b, lambda u, wide: u * np.abs(a * b))

        return self._recorded(times(x, y), lambda d: {"x": times(d, y), "y": times(d, x)}, x=x, y=y)

    def residual(self, x: Floats, y: Floats, kept: Floats | None) -> Floats:
        """Return x + y; kept: what y is multiplied by before, for dropout."""
        added = y if kept is None else y * kept
        exact = x + added
        total = self._moved(exact, lambda u, wide: u * np.minimum(np.abs(exact) + np.abs(y), np.abs(x) + np.abs(added)))
        return self._recorded(total, lambda d: {"x": d, "y": d if kept is None else d * kept}, x=x, y=y)

    def heads(self, x: Floats, count: int) -> Floats:
        """(..., length, count * d) -> (..., count, length, d)."""
        return self._recorded(_heads(x, count), lambda d: {"x": _joined(d)}, x=x)

    def joined(self, x: Floats) -> Floats:
        """(..., heads, length, d) -> (..., length, heads * d)."""
        return self._recorded(_joined(x), lambda d: {"x": _heads(d, x.shape[-3])}, x=x)

    def rotary(self, x: Floats, rotary: Any, offset: Any) -> Floats:
        """Rotate x (..., heads, L, d) at positions from ``offset``, an int or an integer for each element of the batch."""
        at = np.arange(x.shape[-2]) + (offset[..., None, None] if isinstance(offset, np.ndarray) else offset or 0)
        tables = {"cos": rotary.cos[at], "sin": rotary.sin[at], "interleaved": rotary.interleaved}
        y = reference.rotary(x, **tables)
        moved = self._moved(y, lambda u, wide: 4 * u * np.abs(x).max(axis=-1, keepdims=True, initial=0))
        return self._piece(partial(piece_gradients.rotary, **tables), moved, x=x)

    def finite(self, bias: Floats, given: Floats) -> Floats:
        """Record that a bias (..., H, L, S) holds the numbers of a given one, but where that is -inf."""
        return self._recorded(bias, lambda d: {"given": d}, given=given)

    def looked_up(self, bias: Floats, table: Floats, buckets: Floats) -> Floats:
        """Record that a bias (H, L, S) holds the numbers of a table (buckets, H)."""

        def pull(d: Floats) -> Named:
            exact, size = (by_bucket(x, buckets, table.shape) for x in (d, np.abs(d)))
            return {"table": self._moved(exact, lambda u, wide: 4 * wide * size + u * np.abs(exact))}

        return self._recorded(bias, pull, table=table)

    def attention(self, q: Floats, k: Floats, v: Floats, **options: Any) -> Floats:
        settings: dict[str, Any] = {"dtype": self.dtype, "rounds_weights": self.rounds_weights}
        optional = {name: options.get(name) for name in ("bias", "sink")}
        bias = optional["bias"]
        of_bias = None if bias is None else partial(summed_to, shape=np.shape(bias))

        def moved(exact: Floats, bound: Floats) -> Floats:
            return self._moved(exact, lambda u, wide: bound)

        def pull(d: Floats) -> Named:
            stages = gradient_bounds(q, k, v, d, of_bias=of_bias, **settings, **options)
            gradients = next(stages) if self.rng is None else [*stages][-1]
            return {name: moved(*both) for name, both in gradients.items()}

        if self.rng is None:
            out = attention(q, k, v, **options)[0]
        else:
            exact = tolerance.exact_attention(q, k, v, **settings, **options)
            out = moved(exact.out, exact.out_bound)
        return self._recorded(out, pull, query=q, key=k, value=v, **optional)


def bound_of(exact: Floats, moved: Iterable[Floats], dtype: str) -> Floats:
    """Return a bound on the error of each element, from what the result moved by in each trial; NaN if that is not known."""
    furthest = np.zeros(exact.shape)
    for each in moved:
        furthest = np.maximum(furthest, np.abs(each - exact))
    rows = furthest.max(axis=-1, keepdims=True, initial=0)  # of the few features of a row, one may have moved little by chance
    rows = np.maximum(rows, rows.mean() if rows.size else 0)
    largest = np.abs(exact).max(axis=-1, keepdims=True, initial=0)
    rows = np.where(rows > _STABLE * largest, rows + largest, rows)  # a norm of nearly equal features may turn them altogether
    bound = SAFETY * rows + tolerance.UNIT_ROUNDOFF[dtype] * np.abs(exact) + tolerance.least(dtype)
    return np.broadcast_to(bound, exact.shape)


def _heads(x: Floats, count: int) -> Floats:
    return np.swapaxes(x.reshape(*x.shape[:-1], count, x.shape[-1] // count), -2, -3)


def _joined(x: Floats) -> Floats:
    x = np.swapaxes(x, -2, -3)
    return x.reshape(*x.shape[:-2], x.shape[-2] * x.shape[-1])
