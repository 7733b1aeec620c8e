"""Gradients of attention in NumPy float64, and a bound on the rounding error of each element.

With a the scaled scores, c the softcap, s the scores, p the weights, y the output, and d_y and d_lse what is given (Dao et al.
2022, appendix B.2; Dao 2023, section 3.1, where d_lse is 0):

    delta = sum(d_y y) - d_lse    dp = d_y v^T    ds = p (dp - delta)    da = scale ds (1 - tanh(a / c)^2)
    d_query = da k    d_key = da^T q    d_value = p^T d_y    d_bias = ds    d_sink = -sum(p_sink delta)

Dropout multiplies p in y and d_value, and dp, by the same numbers. A score function multiplies da by its slope, and each number
that it reads has the sum of ds times the derivative by it as its gradient.

The error of a sum of n products is relative to the sum of their absolute values, and that of a weight to its argument:

    |error| <= 8 u log2(n) sum(|terms| r) + u_out |gradient|
    r = 4 + size + sum(p size) + |lse|,    size = scale |q| |k|^T + |s|

with u the unit roundoff of the dtype in which sums are computed, and u_out that of the gradient. sum(p size) is the error
of lse. 8 log2(n) is enough for powers of two: 2^(s log2(e) - lse log2(e)) has at most three roundings relative to |s| and to
|lse|. Half precision also has the roundings of the forward pass: y is rounded to the dtype of the query, and fused kernels
round weights, in both directions. Every product and sum may be flushed (``flushed``). A gradient without any term must be
exactly 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .attention import Floats, attention
from .score_function import Changed, ScoreFunction
from .tolerance import LARGEST, NEGLIGIBLE, SMALLEST, UNIT_ROUNDOFF, compute_dtype, flushed

Bounded = tuple[Floats, Floats]
"""An exact array, and a bound on the error of each element."""


@dataclass(frozen=True)
class _Factors:
    """The factors of the sums: exact ones, or the errors of the first four beside absolute values of the others."""

    p: Floats
    ds: Floats
    da: Floats
    d_sink: Floats
    """The terms of the sink's gradient, (..., H, L)."""
    query: Floats
    key: Floats
    d_out: Floats
    of_score: Mapping[str, Any]
    """The terms of the gradient of each array of a score function, as ``ScoreFunction.gradient`` takes them."""
    score: ScoreFunction | None

    def sums(self, shapes: dict[str, tuple[int, ...]], of_bias: Callable[[Floats], Floats] | None) -> dict[str, Floats]:
        """Return the gradients, summed over the query heads that share a key head and over axes that were broadcast."""
        gradients = {
            "query": summed_to(self.da @ self.key, shapes["query"]),
            "key": _by_key_head(np.swapaxes(self.da, -1, -2) @ self.query, shapes["key"]),
            "value": _by_key_head(np.swapaxes(self.p, -1, -2) @ self.d_out, shapes["value"]),
        }
        if of_bias is not None:
            gradients["bias"] = of_bias(self.ds)
        if "sink" in shapes:
            gradients["sink"] = summed_to(self.d_sink.sum(axis=-1), shapes["sink"])
        for name, terms in self.of_score.items():
            assert self.score is not None
            gradients[name] = self.score.gradient(name, terms)
        return gradients


def attention_gradients(*arrays: Any, **options: Any) -> dict[str, Bounded]:
    """Return the gradients by name with the last bounds of ``gradient_bounds``."""
    return [*gradient_bounds(*arrays, **options)][-1]


def gradient_bounds(
    query: Any,
    key: Any,
    value: Any,
    d_out: Any = None,
    d_lse: Any = None,
    *,
    dtype: str = "float64",
    rounds_weights: bool = False,
    of_bias: Callable[[Floats], Floats] | None = None,
    kept_weights: Any = None,
    allowed: Any = None,
    bias: Any = None,
    scale: float | None = None,
    softcap: float | None = None,
    sink: Any = None,
    score: ScoreFunction | None = None,
    wide: frozenset[str] = frozenset(),
) -> Iterator[dict[str, Bounded]]:
    """Yield the gradients of query, key, value, bias, sink and the arrays of ``score`` by name.

    The arrays already hold numbers of ``dtype``.

    The first have bounds of 0. Then come bounds on rounding, which are enough for most results, and at last those with the
    errors of tiny numbers too. In half precision, where the forward pass is rounded, the last ones follow at once.

    d_out, d_lse : gradients of the outputs; None is 0
    rounds_weights : allow weights to be rounded to ``dtype``, as fused half-precision kernels do
    of_bias : sums the gradients of all pairs, (..., H, L, S), to that of the bias: ``summed_to`` its shape, or ``by_bucket``
    kept_weights : what the weights are multiplied by, after the softmax, for dropout
    wide : the names of arrays that have the dtype of the scores, also beside half precision
    """
    arrays = {name: np.asarray(x, dtype=np.float64) for name, x in (("query", query), ("key", key), ("value", value))}
    options = {"allowed": allowed, "bias": bias, "scale": scale, "softcap": softcap, "sink": sink, "score": score}
    y, lse, p = attention(*arrays.values(), **options)
    q, k, v = (np.repeat(x, y.shape[-3] // max(1, x.shape[-3]), axis=-3) for x in arrays.values())
    dropped = kept_weights is not None
    kept_weights = np.broadcast_to(kept_weights if dropped else 1.0, p.shape)
    w = p * kept_weights
    y = w @ v if dropped else y
    d_y = np.zeros(y.shape) if d_out is None else np.broadcast_to(np.asarray(d_out, dtype=np.float64), y.shape)
    d_lse = np.zeros(lse.shape) if d_lse is None else np.broadcast_to(np.asarray(d_lse, dtype=np.float64), lse.shape)
    scale = (1 / math.sqrt(q.shape[-1]) if q.shape[-1] else 1.0) if scale is None else scale
    a = scale * (q @ np.swapaxes(k, -1, -2))
    slope = np.ones(a.shape) if softcap is None else 1 - np.tanh(a / softcap) ** 2
    seen = np.broadcast_to(True if allowed is None else allowed, p.shape)
    finite_lse = np.where(np.isfinite(lse), lse, 0)
    p_sink = np.zeros(lse.shape) if sink is None else np.exp(np.asarray(sink, dtype=np.float64)[:, None] - finite_lse)

    d_p, delta = kept_weights * (d_y @ np.swapaxes(v, -1, -2)), (d_y * y).sum(axis=-1) - d_lse
    ds = p * (d_p - delta[..., None])
    shapes = {name: x.shape for name, x in arrays.items()} | ({} if sink is None else {"sink": np.shape(sink)})
    size_a = abs(scale) * (np.abs(q) @ np.swapaxes(np.abs(k), -1, -2))
    s = a if softcap is None else softcap * np.tanh(a / softcap)
    u, u_out = UNIT_ROUNDOFF[compute_dtype(dtype)], UNIT_ROUNDOFF[dtype]
    changed = Changed.unchanged(s, size_a) if score is None else Changed.by(score, s, size_a + np.abs(s), u)
    f, terms_of = changed.slope, changed.terms
    exact = _Factors(
        *(w, ds, scale * ds * f.value * slope, -p_sink * delta, q, k, d_y),
        *(terms_of(lambda by: ds * by.value), score),
    ).sums(shapes, of_bias)
    yield {name: (x, np.zeros(x.shape)) for name, x in exact.items()}

    # the errors of the same factors, in units of 8 u log2(n)
    s = changed.score.value
    s = np.where(seen, s if bias is None else s + bias, 0)
    own = np.where(seen, changed.score.error + np.abs(s) + (0 if bias is None else np.abs(bias)), 0)
    own_sink = 0.0 if sink is None else np.abs(np.asarray(sink, dtype=np.float64))[:, None]
    of_lse = 4 + np.abs(finite_lse) + (p * own).sum(axis=-1) + p_sink * own_sink
    r = own + of_lse[..., None]
    size_y, size_p = w @ np.abs(v), kept_weights * (np.abs(d_y) @ np.swapaxes(np.abs(v), -1, -2))
    size_delta = (np.abs(d_y) * size_y).sum(axis=-1) + np.abs(d_lse)
    error_delta = (np.abs(d_y) * ((w * r) @ np.abs(v))).sum(axis=-1) + 4 * np.abs(d_lse)
    terms = size_p + size_delta[..., None]
    error_ds = p * (r * terms + error_delta[..., None])
    of_slope = 0.0 if softcap is None else p * terms * (1 + 2 / softcap * size_a * slope)
    error_da = abs(scale) * ((error_ds * slope + of_slope) * np.abs(f.value) + p * terms * f.error * slope)
    absolute = np.abs(q), np.abs(k), np.abs(d_y)
    error_sink = p_sink * ((of_lse + own_sink) * size_delta + error_delta)
    error = _Factors(
        *(w * r, error_ds, error_da, error_sink, *absolute),
        *(terms_of(lambda by: error_ds * np.abs(by.value) + p * terms * (np.abs(by.value) + by.error)), score),
    ).sums(shapes, of_bias)

    wide_dtype, both = compute_dtype(dtype), 2.0 if dtype == "float64" else 1.0  # the oracle computes in float64 too

    def bounded(name: str, x: Floats, rest: Floats | float) -> Bounded:
        its_dtype = wide_dtype if name in wide else dtype
        length = 2 + v.shape[-1] + q.shape[-1] + max(p.shape[-2:]) + p.size / max(1, x.size)
        bound = both * (8 * u * math.log2(length) * error[name] + rest + UNIT_ROUNDOFF[its_dtype] * np.abs(x))
        rows = x.size / (x.shape[-1] if name in arrays and x.size else 1)
        count = max(1.0, abs(scale)) * (1 + p.size / max(1, rows))
        tiny = SMALLEST[its_dtype] + length * SMALLEST[wide_dtype] + flushed(error[name], count, dtype)
        bound = np.where(np.abs(x) + bound < LARGEST[its_dtype], bound + tiny, np.inf)
        return x, np.where(error[name] + rest > 0, bound, 0)

    if u_out == u:
        yield {name: bounded(name, x, 0.0) for name, x in exact.items()}

    # those of half precision and of tiny numbers
    u_p = u_out if rounds_weights and u_out > u else 0.0
    half_y = u_out * np.abs(y) + SMALLEST[dtype] / 2 if u_out > u else 0.0
    lost = np.where(seen, NEGLIGIBLE[wide_dtype], 0)
    rest_y = half_y + u_p * size_y + (kept_weights * lost) @ np.abs(v) + flushed(size_y, p.shape[-1] + 1, dtype)
    rest_delta = (np.abs(d_y) * rest_y).sum(axis=-1) + flushed(size_delta, v.shape[-1] + 1, dtype)
    rest_p = flushed(size_p, v.shape[-1] + 1, dtype) + rest_delta[..., None]
    least = SMALLEST[wide_dtype] + (SMALLEST[dtype] / 2 if u_p else 0.0)  # of a factor that is subnormal, or rounded to half
    rest_w = kept_weights * (u_p * p + np.where(seen, least, 0) + lost)
    rest_ds = p * rest_p + u_p * p * terms + lost * terms + np.where(seen, least, 0)
    rest_ds = rest_ds + flushed(p * terms, 3, dtype)  # two terms, and the product with the slope
    rest_sink = p_sink * rest_delta + np.where(p_sink > 0, least + NEGLIGIBLE[wide_dtype] * size_delta, 0)
    rest_sink = rest_sink + flushed(p_sink * size_delta, 2, dtype)
    rest_da = abs(scale) * rest_ds + np.where(seen, SMALLEST[wide_dtype], 0)  # scaled before or after the sum
    rest_da = rest_da + flushed(abs(scale) * p * terms, 1, dtype)
    rest = _Factors(
        *(rest_w, rest_ds, rest_da, rest_sink, *absolute),
        *(terms_of(lambda by: rest_ds * np.abs(by.value) + flushed(p * terms * np.abs(by.value), 1, dtype)), score),
    ).sums(shapes, of_bias)
    yield {name: bounded(name, x, rest[name]) for name, x in exact.items()}


def summed_to(x: Floats, shape: tuple[int, ...]) -> Floats:
    """Return x summed over the axes along which an array of this shape was broadcast."""
    x = x.sum(axis=tuple(range(x.ndim - len(shape))))
    return x.sum(axis=tuple(at for at, size in enumerate(shape) if size == 1 != x.shape[at]), keepdims=True)


def by_bucket(x: Floats, buckets: Any, shape: tuple[int, ...]) -> Floats:
    """Return the gradient of a table (buckets, H) from those of all pairs; ``buckets`` broadcasts to (..., 1, L, S)."""
    gradients = np.zeros(shape)
    buckets = np.broadcast_to(buckets, (*x.shape[:-3], 1, *x.shape[-2:]))[..., 0, :, :]
    for head in range(shape[1]):
        np.add.at(gradients[:, head], buckets, x[..., head, :, :])
    return gradients


def _by_key_head(x: Floats, shape: tuple[int, ...]) -> Floats:
    """(..., H, S, d) -> shape (..., K, S, d): sums over the query heads of each key head, and over axes that were broadcast."""
    heads = shape[-3]
    grouped = x.reshape(*x.shape[:-3], heads, x.shape[-3] // max(1, heads), *x.shape[-2:])
    return summed_to(grouped.sum(axis=-3), shape)


def merge_gradients(
    outs: Sequence[Floats], lses: Sequence[Floats], d_out: Floats, d_lse: Floats, *, dtype: str = "float64"
) -> list[tuple[Bounded, Bounded]]:
    """Return the gradients of the out and the lse of each state that is merged.

    With the weights w = e^(lse_i - lse): w d_out, and w (d_out (out_i - out) + d_lse); exactly 0 for a state over no keys.
    """
    wide = compute_dtype(dtype)
    u, u_out = UNIT_ROUNDOFF[wide], UNIT_ROUNDOFF[dtype]
    both = 2.0 if dtype == "float64" else 1.0  # the oracle computes in float64 too
    total = np.logaddexp.reduce(lses)
    weights = [np.where(lse == -np.inf, 0, np.exp(lse - np.where(total == -np.inf, 0, total))) for lse in lses]
    out = sum(w[..., None] * x for w, x in zip(weights, outs, strict=True))
    size = sum(w[..., None] * np.abs(x) for w, x in zip(weights, outs, strict=True))
    r = 8 * (4 + np.max([np.where(np.isfinite(lse), np.abs(lse), 0) for lse in lses], axis=0))
    results = []
    for w, x in zip(weights, outs, strict=True):
        of_out, of_lse = w[..., None] * d_out, w * ((d_out * (x - out)).sum(axis=-1) + d_lse)
        terms = w * ((np.abs(d_out) * (np.abs(x) + size)).sum(axis=-1) + np.abs(d_lse))
        half = w * (np.abs(d_out) * np.abs(out)).sum(axis=-1) * (u_out if u_out > u else 0)
        bound_out = both * (u * r[..., None] + u_out) * np.abs(of_out) + np.where(w > 0, SMALLEST[dtype], 0)[..., None]
        bound_out = bound_out + flushed(np.abs(of_out), 1 + np.abs(d_out), dtype)
        bound_lse = both * math.log2(2 + x.shape[-1]) * u * r * terms + half + np.where(w > 0, SMALLEST[wide], 0)
        bound_lse = bound_lse + flushed(terms, 2 + 2 * x.shape[-1] + terms / np.where(w > 0, w, 1), dtype)
        results.append(((of_out, bound_out), (of_lse, bound_lse)))
    return results
