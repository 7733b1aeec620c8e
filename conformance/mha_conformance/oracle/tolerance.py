"""Bounds on the rounding error of attention, one for each element, derived from the arithmetic.

With p the exact weights, s the scores, y the exact output, u the unit roundoff of the dtype in which scores are computed,
u_out that of the output, and u_p that of probabilities which a fused kernel rounds (0 where they stay in the wide dtype):

    ds = u ((sqrt(d) + 2) scale |q| |k|^T + |s| + 1 + 9/4 (s_max - s))
    |error| <= sum(p ds |v|) + sum(p ds) (|y| + p |v|) + u (sqrt(S) + 3) p |v| + u_out |y| + u_p p |v| + e0 sum |v| + tiny

A sum of n products has an error of u sqrt(n) times the sum of their magnitudes, since rounding errors have either sign (Higham
and Mary 2019). Terms below u times the sum are an exception: they may be lost one after another (``absorbed``). exp turns an
absolute error of its argument into a relative one of its result. Softcap, bias and score functions add their own roundings to
ds; e0 is a probability that may count as 0; ``tiny`` is half the smallest subnormal of the output, and what is flushed. The
oracle computes in float64: for a backend that computes in float64 too, both have errors, and the bound doubles.

An exponential may be a power of two. If scores are multiplied by log2(e), the product is rounded relative to |s|; if their
distances are, relative to s_max - s, as the difference is. log2(e), which float32 and float64 hold within u / 4, is a factor of
all scores, so its error is relative to the distance too.

A number below the smallest normal one, ``NORMAL``, may be flushed to 0, as nvcc -ftz=true and torch.set_flush_denormal do. In a
sum this loses at most NORMAL for each of its n terms, and no more than their magnitudes: ``flushed``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..report.evidence import evidence
from .attention import Floats, attention

UNIT_ROUNDOFF = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-24, "float64": 2.0**-53}
NEGLIGIBLE = {"float32": 2.0**-99, "float64": 2.0**-899}
"""Probabilities up to this may count as 0: products with denormal numbers take a hundred times as long on some processors."""
SMALLEST = {"float16": 2.0**-24, "bfloat16": 2.0**-133, "float32": 2.0**-149, "float64": 2.0**-1074}
NORMAL = {"float32": 2.0**-126, "float64": 2.0**-1022}
"""The smallest normal number of each dtype in which scores are computed: a smaller one may count as 0."""
LARGEST = {
    "float16": 65504.0,
    "bfloat16": (2 - 2.0**-7) * 2.0**127,
    "float32": (2 - 2.0**-23) * 2.0**127,
    "float64": float(np.finfo(np.float64).max),
}


def compute_dtype(dtype: str) -> str:
    """Return the dtype in which scores are computed for arrays of ``dtype`` (promise 9)."""
    return "float64" if dtype == "float64" else "float32"


def is_half(dtype: str) -> bool:
    """Return whether a dtype has half precision: narrower than that of the scores."""
    return UNIT_ROUNDOFF[dtype] > UNIT_ROUNDOFF[compute_dtype(dtype)]


def flushed(terms: Floats, count: Any, dtype: str) -> Floats:
    """Bound what a sum of ``count`` terms loses if inputs, factors, terms and partial sums may be flushed.

    ``terms`` is the sum of their magnitudes. A flush loses less than NORMAL, and no more than the terms that have been summed
    since the last one. Each term is lost once, so the flushes lose no more than min(NORMAL, |term|) of each term.
    """
    return np.minimum(count * NORMAL[compute_dtype(dtype)], terms)


def least(dtype: str) -> float:
    """Return the error of any result: it may be rounded to a subnormal number, or flushed before that."""
    return SMALLEST[dtype] + NORMAL[compute_dtype(dtype)]


@dataclass(frozen=True)
class Exact:
    """The exact answer of an attention problem, and a bound on the error of each element."""

    out: Floats
    lse: Floats
    weights: Floats
    out_bound: Floats
    lse_bound: Floats
    weights_bound: Floats

    def assert_near(self, out: np.ndarray, lse: np.ndarray | None = None) -> None:
        """Raise AssertionError if out, or lse where it is given, is farther from the exact answer than its bound."""
        assert_within("out", out, self.out, self.out_bound)
        if lse is not None:
            assert_within("lse", lse, self.lse, self.lse_bound)


def exact_attention(
    query: Any,
    key: Any,
    value: Any,
    *,
    dtype: str,
    rounds_weights: bool = False,
    equal_weights: bool = False,
    scale: float | None = None,
    kept_weights: Any = None,
    **options: Any,
) -> Exact:
    """Return the oracle's answer and its bounds, for arrays that already hold numbers of ``dtype``.

    rounds_weights: allow probabilities to be rounded to ``dtype``, as fused half-precision kernels do.
    equal_weights: the probabilities of a row are nearly equal, so that rounding errors of their sum may all have one sign.
    kept_weights: what the weights are multiplied by, for dropout.
    options: ``allowed``, ``bias``, ``softcap``, ``score`` and ``sink``, as the oracle takes them.
    """
    y, lse, p = attention(query, key, value, scale=scale, kept_weights=kept_weights, **options)
    u, u_out = UNIT_ROUNDOFF[compute_dtype(dtype)], UNIT_ROUNDOFF[dtype]
    num_keys, groups = p.shape[-1], query.shape[-3] // key.shape[-3]
    key, value = (np.repeat(np.asarray(x, dtype=np.float64), groups, axis=-3) for x in (key, value))
    ds, ds_sink = _score_errors(u, np.asarray(query, dtype=np.float64), key, lse, p, scale, **options)
    mean_ds = (p * ds).sum(axis=-1, keepdims=True) + ds_sink
    of_sum = u * ((num_keys if equal_weights else np.sqrt(num_keys)) + 3) + absorbed(u, p, 1.0).sum(axis=-1, keepdims=True)
    of_terms = absorbed(u, p, p.sum(axis=-1, keepdims=True))
    p, of_terms = (x if kept_weights is None else x * kept_weights for x in (p, of_terms))
    absolute = p @ np.abs(value)
    weights_bound = p * (ds + mean_ds + of_sum)
    bound = (p * ds + of_terms) @ np.abs(value) + mean_ds * (np.abs(y) + absolute) + of_sum * absolute
    lse_bound = (mean_ds + of_sum)[..., 0] + 2 * u * np.abs(np.where(np.isfinite(lse), lse, 0))
    if rounds_weights and u_out > u:
        # a probability is rounded relative to the greatest of its row, where it may be subnormal
        top = p.max(axis=-1, keepdims=True, initial=0)
        bound = bound + u_out * absolute + SMALLEST[dtype] / 2 * top * np.abs(value).sum(axis=-2, keepdims=True)
    both = 2.0 if dtype == "float64" else 1.0
    tiny = (SMALLEST[dtype] + num_keys * SMALLEST[compute_dtype(dtype)]) / 2  # products of small values are subnormal
    rest = NEGLIGIBLE[compute_dtype(dtype)] * (p > 0)
    bound, weights_bound = bound + rest @ np.abs(value), weights_bound + rest
    bound = both * (bound + u_out * np.abs(y)) + tiny + flushed(absolute, num_keys + 1, dtype)
    bound = np.where(np.isneginf(lse)[..., None], 0, bound)  # exactly 0 without a key
    weights_bound = np.where(p > 0, both * (weights_bound + u_out * p) + tiny, 0)
    return Exact(y, lse, p, bound, both * lse_bound, weights_bound)


def _score_errors(
    u: float,
    query: Floats,
    key: Floats,
    lse: Floats,
    p: Floats,
    scale: float | None,
    *,
    allowed: Any = None,
    bias: Any = None,
    softcap: float | None = None,
    sink: Any = None,
    score: Any = None,
) -> tuple[Floats, Floats]:
    """Return ds for every pair, and p ds of the sink, which has a weight but no value."""
    width = query.shape[-1]
    scale = (1 / np.sqrt(width) if width else 1.0) if scale is None else scale
    keys = np.swapaxes(key, -1, -2)
    s = scale * (query @ keys)
    ds = (np.sqrt(width) + 2) * abs(scale) * (np.abs(query) @ np.abs(keys))
    if softcap is not None:
        s = softcap * np.tanh(s / softcap)
        ds = ds + 4 * np.abs(s)  # the division, tanh within two roundings, the product; the slope is at most 1
    ds = ds + np.abs(s)  # in another base
    if score is not None:  # of scores that are in base e again; its results are in another base
        rounded = score.rounded(s, u * (ds + np.abs(s)), u)
        s, ds = rounded.value, rounded.error / u + np.abs(rounded.value)
    if bias is not None:
        s = s + bias
        ds = ds + np.abs(s) + 2 * np.abs(bias)  # the sum, and the bias: a product of slope and distance, and in another base
    seen = np.broadcast_to(True if allowed is None else allowed, p.shape)
    s = np.where(seen, s, -np.inf)
    top = s.max(axis=-1, keepdims=True, initial=-np.inf)
    empty = np.zeros((*lse.shape, 1))
    if sink is None:
        return u * np.where(seen, ds + _of_exp(top, s), 0), empty
    given = np.asarray(sink, dtype=np.float64)[:, None, None]
    top = np.maximum(top, given)
    p_sink = np.exp(given - lse[..., None])
    return u * np.where(seen, ds + _of_exp(top, s), 0), u * p_sink * (np.abs(given) + _of_exp(top, given))


def absorbed(u: float, p: Floats, total: Any) -> Floats:
    """Return the terms that vanish beside their sum, 0 for others. An addition loses no more than its smaller term."""
    return np.where(p < u * total, p, 0)


def _of_exp(top: Floats, s: Floats) -> Floats:
    """Return the error of exp(s - top): its own, the difference, the product with log2(e), and log2(e); 1 in an empty row."""
    return 1 + 9 / 4 * np.where(np.isfinite(s), top - np.where(np.isfinite(s), s, 0), 0)


OPERATIONS = {
    "out": "attention",
    "lse": "attention lse",
    "weights": "attention weights",
    **{f"d_{name}": f"gradient of {name}" for name in ("query", "key", "value", "bias", "sink")},
}
"""The operation of each named result. Other names begin with their operation, such as "gelu tanh"."""


@dataclass(frozen=True)
class Compared:
    """A result beside the exact answer and the bounds on its errors."""

    name: str
    got: np.ndarray
    exact: Floats
    bound: Floats
    error: Floats
    excess: Floats
    """The error divided by the bound."""
    wrong: np.ndarray
    """Where the error exceeds the bound."""

    def assert_within(self) -> None:
        """Raise AssertionError, naming the worst element, if any is wrong. The greatest error over its bound is recorded."""
        greatest = float(self.excess.max(initial=0.0))
        operation = self.name.partition(" ")[0]
        evidence.error(OPERATIONS.get(self.name, OPERATIONS.get(operation, operation)), self.got.dtype.name, greatest)
        if self.wrong.any():
            at = tuple(int(i) for i in np.unravel_index(int(np.argmax(self.excess)), self.excess.shape))
            got, exact, bound, error, excess = (x[at] for x in (self.got, self.exact, self.bound, self.error, self.excess))
            raise AssertionError(
                f"{self.name}{list(at)} is {got:.9g}; expected {exact:.9g} within {bound:.3g}; the error is {error:.3g} "
                f"({excess:.3g} times the bound); {int(self.wrong.sum())} of {self.wrong.size} elements exceed the bound"
            )


def compared(name: str, got: np.ndarray, exact: Floats, bound: Floats, largest: float = np.inf) -> Compared:
    """Compare a result with the exact answer. Raise AssertionError if the shapes differ.

    An element is wrong if |got - exact| > bound. One beyond the largest of its dtype must be infinite; one within its bound
    of it may be. Where the bound is NaN, every result is right: a number on the way to it is beyond the largest.
    """
    assert got.shape == exact.shape, f"{name} has shape {got.shape}; expected {exact.shape}"
    wide, unknown = got.astype(np.float64), np.isnan(bound)
    bound = np.where(unknown, np.inf, bound)
    with np.errstate(invalid="ignore", over="ignore"):
        near = np.abs(exact) + bound > largest
        exact = np.where(np.abs(exact) - bound > largest, np.copysign(np.inf, exact), exact)
        wide = np.where(near & np.isinf(wide) & (np.sign(wide) == np.sign(exact)), exact, wide)
        equal = (wide == exact) | (np.isnan(wide) & np.isnan(exact)) | unknown  # inf - inf is not an error
        error = np.where(equal, 0.0, np.abs(wide - exact))
        excess = np.where(np.isnan(error), np.inf, error / np.maximum(bound, np.finfo(np.float64).tiny))
    return Compared(name, got, exact, bound, error, excess, ~(error <= bound))  # an error of NaN is wrong too


def assert_within(name: str, got: np.ndarray, exact: Floats, bound: Floats, largest: float = np.inf) -> None:
    """Raise AssertionError, naming the worst element, if any error exceeds its bound: see ``compared``."""
    compared(name, got, exact, bound, largest).assert_within()
