"""The linear map, and norms over the last axis."""

from __future__ import annotations

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
