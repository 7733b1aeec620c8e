"""Bounds on rounding: how far two correct results may differ, element by element.

Each function takes a result y and the arguments of the algebra's function of the same name. It returns the difference that
rounding explains between y and another result computed in the same precision: twice the error of one. u is the unit roundoff of
the compute dtype, u_out that of the result; a sum of n terms is assumed to have an error of sqrt(n) u (Higham and Mary 2019,
section 4).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from .arrays import Array, Namespace, compute_dtype
from .attention import exponentials, grouped, grouped_sink, scores, ungrouped, upcast
from .int8 import GROUP
from .problem import AttentionProblem
from .state import AttentionState, concat_queries
from .tiles import pieces

_BLOCK = 1 << 20  # scores in a block


def attention(p: AttentionProblem, y: AttentionState) -> AttentionState:
    """Return the bounds of ``out`` and ``lse``, computed for one block of queries after another.

    With weights w and scores s, ds = u ((sqrt(D) + 2) scale |q| |k|^T + |s| + 1 + max s - s) bounds the error of a score, and

        sum w ds |v| + (sum w ds) (|y| + w |v|) + u (sqrt(S) + 3) w |v| + u_out (|y| + w |v|)

    bounds the error of the output. The last term is for kernels that round weights to the precision of their input; there a
    weight below half the smallest subnormal, relative to the greatest of its row, is lost.
    """
    xp, rows = p.xp, range(p.query.shape[-2])
    num_rows = max(1, _BLOCK // max(1, math.prod(p.rows_shape[:-1]) * len(p.structure.keys)))
    bounds = [_attention_rows(p, y, block_rows) for block_rows in pieces(rows, num_rows)]
    if not bounds or not len(p.structure.keys):
        return AttentionState(xp.zeros_like(y.out), xp.zeros_like(y.lse))
    return concat_queries(xp, bounds)


def _attention_rows(p: AttentionProblem, y: AttentionState, rows: range) -> AttentionState:
    xp, keys = p.xp, p.structure.keys
    s = scores(p, rows, keys)
    e, d, _, _ = exponentials(xp, s, grouped_sink(p))
    weights = e / d
    positive = weights > 0
    top = xp.max(xp.where(positive, s, -math.inf), axis=-1, keepdims=True)
    s, top = xp.where(positive, s, 0), xp.where(top == -math.inf, 0, top)  # no infinities, for which NumPy would warn
    query = xp.abs(grouped(p, upcast(p, p.query[..., rows.start : rows.stop, :])))
    key, value = (xp.abs(upcast(p, x))[..., :, None, :, :] for x in (p.key, p.value))
    reach = (math.sqrt(p.query.shape[-1]) + 2) * abs(p.scale) * xp.matmul(query, xp.matrix_transpose(key))
    u = _roundoff(xp, p.compute_dtype)
    ds = xp.where(positive, weights * (u * (reach + xp.abs(s) + 1 + top - s)), 0)
    seen = xp.matmul(weights, value)
    moved = xp.sum(ds, axis=-1, keepdims=True)
    out, lse = y.out[..., rows.start : rows.stop, :], y.lse[..., rows.start : rows.stop]
    spread = ungrouped(p, xp.matmul(ds, value) + moved * seen + u * (math.sqrt(len(keys)) + 3) * seen)
    size = xp.abs(upcast(p, out))
    u_out = _roundoff(xp, p.query.dtype)
    bound = spread + ungrouped(p, moved) * size + u_out * (size + ungrouped(p, seen))
    if u_out > u:  # weights are rounded relative to the greatest of their row, and may become subnormal or 0
        subnormal = _tiny(xp, p.query.dtype) * u_out * xp.max(weights, axis=-1, keepdims=True)
        bound = bound + ungrouped(p, subnormal * xp.sum(value, axis=-2, keepdims=True))
    finite = xp.where(lse == -math.inf, 0, xp.abs(lse))
    shift = ungrouped(p, moved)[..., 0] + u * (math.sqrt(len(keys)) + 3 + finite)
    return AttentionState(2 * bound + _tiny(xp, p.query.dtype), 2 * shift)


def linear(xp: Namespace, y: Array, x: Array, w: Array, b: Array | None) -> Array:
    """u (sqrt(n) + 3) (|x| |w| + |b|) + u_out (2 |y| + |b|): the product may be rounded before the bias is added."""
    wide = compute_dtype(xp, x.dtype)
    x, w = (xp.abs(xp.astype(a, wide)) for a in (x, w))
    bias = 0.0 if b is None else xp.abs(xp.astype(b, wide))
    error = _roundoff(xp, wide) * (math.sqrt(x.shape[-1]) + 3) * (xp.matmul(x, w) + bias)
    return _twice(xp, y, error + _roundoff(xp, y.dtype) * (xp.abs(xp.astype(y, wide)) + bias))


def linear_int8(xp: Namespace, y: Array, x: Array, values: Array, scale: Array, b: Array | None) -> Array:
    """u (g + 4) (|x| |w| + |b|) + u_out |y|: integers are exact, and g sums of groups are scaled and added up."""
    wide = compute_dtype(xp, x.dtype)
    x, scale, groups = xp.abs(xp.astype(x, wide)), xp.astype(scale, wide), -(-x.shape[-1] // GROUP)
    size = xp.matmul(x, xp.abs(xp.astype(values, wide))) * scale
    size = size if b is None else size + xp.abs(xp.astype(b, wide))
    return _twice(xp, y, (groups + 4) * _roundoff(xp, wide) * size)


def activation(xp: Namespace, y: Array, x: Array, **options: Any) -> Array:
    """8 u |x| + u_out |y|."""
    wide = compute_dtype(xp, x.dtype)
    return _twice(xp, y, 8 * _roundoff(xp, wide) * xp.abs(xp.astype(x, wide)))


def layer_norm(xp: Namespace, y: Array, x: Array, weight: Array | None, bias: Array | None, eps: float) -> Array:
    """u (sqrt(n) + 8) ((|x| + mean |x|) / sqrt(var + eps) |weight| + |bias|) + u_out |y|."""
    wide = compute_dtype(xp, x.dtype)
    x = xp.astype(x, wide)
    centred = x - xp.mean(x, axis=-1, keepdims=True)
    return _norm(xp, y, x, centred, weight, bias, eps)


def rms_norm(xp: Namespace, y: Array, x: Array, weight: Array | None, eps: float) -> Array:
    """u (sqrt(n) + 8) (|x| + mean |x|) / sqrt(mean x^2 + eps) |weight| + u_out |y|."""
    x = xp.astype(x, compute_dtype(xp, x.dtype))
    return _norm(xp, y, x, x, weight, None, eps)


def _norm(xp: Namespace, y: Array, x: Array, centred: Array, weight: Array | None, bias: Array | None, eps: float) -> Array:
    size = xp.abs(x) + xp.mean(xp.abs(x), axis=-1, keepdims=True)
    size = size / xp.sqrt(xp.mean(centred * centred, axis=-1, keepdims=True) + eps)
    size = size if weight is None else size * xp.abs(xp.astype(weight, x.dtype))
    size = size if bias is None else size + xp.abs(xp.astype(bias, x.dtype))
    return _twice(xp, y, _roundoff(xp, x.dtype) * (math.sqrt(x.shape[-1]) + 8) * size)


def rotary(xp: Namespace, y: Array, x: Array, cos: Array, sin: Array, *, interleaved: bool) -> Array:
    """8 u_out times the largest feature of a row."""
    return by_row(xp, y, 8)


def by_row(xp: Namespace, y: Array, roundings: float) -> Array:
    """``roundings`` u_out times the largest finite number of a row."""
    wide = xp.abs(xp.astype(y, compute_dtype(xp, y.dtype)))
    top = xp.max(xp.where(xp.isfinite(wide), wide, 0), axis=-1, keepdims=True)
    return xp.broadcast_to(roundings * _roundoff(xp, y.dtype) * top + _tiny(xp, y.dtype), y.shape)


BOUNDS: dict[str, Callable[..., Array]] = {
    "linear": linear,
    "linear_int8": linear_int8,
    **dict.fromkeys(("gelu", "relu", "silu"), activation),
    "layer_norm": layer_norm,
    "rms_norm": rms_norm,
    "rotary": rotary,
}
"""Bounds by operation. Attention has its own function above; other operations are made of several and have no bound."""


def _twice(xp: Namespace, y: Array, error: Array) -> Array:
    return 2 * (error + _roundoff(xp, y.dtype) * xp.abs(xp.astype(y, error.dtype))) + _tiny(xp, y.dtype)


def _roundoff(xp: Namespace, dtype: Any) -> float:
    return float(xp.finfo(dtype).eps) / 2


def _tiny(xp: Namespace, dtype: Any) -> float:
    """Return the smallest normal number, below which rounding is absolute."""
    return float(xp.finfo(dtype).smallest_normal)
