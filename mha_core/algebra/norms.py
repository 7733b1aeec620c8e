"""The linear map, and norms over the last axis."""

from __future__ import annotations

from collections.abc import Set

from .arrays import Array, Namespace, compute_dtype


def linear(xp: Namespace, x: Array, w: Array, b: Array | None) -> Array:
    """x w + b."""
    y = xp.matmul(x, w)
    return y if b is None else y + b


def layer_norm(xp: Namespace, x: Array, weight: Array | None, bias: Array | None, eps: float) -> Array:
    """(x - mean) / sqrt(var + eps) * weight + bias (Ba, Kiros and Hinton 2016, equation 4)."""
    y = xp.astype(x, compute_dtype(xp, x.dtype), copy=False)
    y = y - xp.mean(y, axis=-1, keepdims=True)
    y = y / xp.sqrt(xp.mean(y * y, axis=-1, keepdims=True) + eps)
    return _affine(xp, y, weight, bias, x)


def rms_norm(xp: Namespace, x: Array, weight: Array | None, eps: float) -> Array:
    """x / sqrt(mean(x^2) + eps) * weight (Zhang and Sennrich 2019, equation 4)."""
    y = xp.astype(x, compute_dtype(xp, x.dtype), copy=False)
    y = y / xp.sqrt(xp.mean(y * y, axis=-1, keepdims=True) + eps)
    return _affine(xp, y, weight, None, x)


def _affine(xp: Namespace, y: Array, weight: Array | None, bias: Array | None, like: Array) -> Array:
    if weight is not None:
        y = y * xp.astype(weight, y.dtype, copy=False)
    if bias is not None:
        y = y + xp.astype(bias, y.dtype, copy=False)
    return xp.astype(y, like.dtype, copy=False)


# gradients: each function receives the arguments, and d, the gradient of the result; it returns those of the arguments in
# ``wanted``, and None for the others. Sums are in float32 or wider.


def linear_vjp(
    xp: Namespace, x: Array, w: Array, b: Array | None, d: Array, *, wanted: Set[str]
) -> tuple[Array | None, Array | None, Array | None]:
    """dx = d w^T, dw = x^T d, db = sum d, the last two summed over all rows."""
    wide = compute_dtype(xp, d.dtype)
    d = xp.astype(d, wide, copy=False)
    dx = xp.matmul(d, xp.matrix_transpose(xp.astype(w, wide, copy=False))) if "x" in wanted else None
    rows = xp.reshape(d, (-1, d.shape[-1])) if d.ndim != 2 else d
    dw = db = None
    if "w" in wanted:
        x_rows = xp.reshape(x, (-1, x.shape[-1])) if x.ndim != 2 else x
        dw = xp.matmul(xp.matrix_transpose(xp.astype(x_rows, wide, copy=False)), rows)
    if "b" in wanted:
        db = xp.sum(rows, axis=0)
    return tuple(None if g is None else xp.astype(g, w.dtype, copy=False) for g in (dx, dw, db))  # type: ignore[return-value]


def layer_norm_vjp(
    xp: Namespace, x: Array, weight: Array | None, bias: Array | None, d: Array, *, wanted: Set[str], eps: float
) -> tuple[Array | None, Array | None, Array | None]:
    """dx = (g - mean g - n mean(g n)) / sqrt(var + eps), with n the normalised x and g = d * weight."""
    y = xp.astype(x, compute_dtype(xp, x.dtype), copy=False)
    y = y - xp.mean(y, axis=-1, keepdims=True)
    spread = xp.sqrt(xp.mean(y * y, axis=-1, keepdims=True) + eps)
    return _norm_vjp(xp, y / spread, spread, weight, d, wanted, x, centred=True)


def rms_norm_vjp(
    xp: Namespace, x: Array, weight: Array | None, d: Array, *, wanted: Set[str], eps: float
) -> tuple[Array | None, Array | None]:
    """dx = (g - n mean(g n)) / sqrt(mean x^2 + eps), with n the normalised x and g = d * weight."""
    y = xp.astype(x, compute_dtype(xp, x.dtype), copy=False)
    spread = xp.sqrt(xp.mean(y * y, axis=-1, keepdims=True) + eps)
    return _norm_vjp(xp, y / spread, spread, weight, d, wanted, x, centred=False)[:2]


def _norm_vjp(
    xp: Namespace, n: Array, spread: Array, weight: Array | None, d: Array, wanted: Set[str], like: Array, *, centred: bool
) -> tuple[Array | None, Array | None, Array | None]:
    d = xp.astype(d, n.dtype, copy=False)
    dx = d_weight = d_bias = None
    if "x" in wanted:
        g = d if weight is None else d * xp.astype(weight, n.dtype, copy=False)
        dx = g - n * xp.mean(g * n, axis=-1, keepdims=True)
        dx = (dx - xp.mean(g, axis=-1, keepdims=True) if centred else dx) / spread
    rows = tuple(range(n.ndim - 1))
    if "weight" in wanted:
        d_weight = xp.sum(d * n, axis=rows)
    if "bias" in wanted:
        d_bias = xp.sum(d, axis=rows)
    return tuple(None if g is None else xp.astype(g, like.dtype, copy=False) for g in (dx, d_weight, d_bias))  # type: ignore[return-value]
