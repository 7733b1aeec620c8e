"""The updates of one weight by optimisers, and clipping by the norm of all gradients."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .arrays import Array, Namespace, at_least, compute_dtype, is_array


def adamw(
    xp: Namespace,
    w: Array,
    gradient: Array,
    m: Array,
    v: Array,
    *,
    learning_rate: float,
    beta_1: float,
    beta_2: float,
    eps: float,
    weight_decay: float,
    step: int,
    gradient_scale: float | Array = 1.0,
) -> tuple[Array, Array, Array]:
    """Return the new w, m and v after a step of AdamW.

        m = beta_1 m + (1 - beta_1) g
        v = beta_2 v + (1 - beta_2) g^2
        w = (1 - learning_rate weight_decay) w - learning_rate m / (1 - beta_1^t) / (sqrt(v / (1 - beta_2^t)) + eps)

    with g = gradient_scale gradient, and t = step + 1, where ``step`` is the number of earlier updates of w. All arrays have
    the same shape, and w and gradient the same dtype. m and v are float32 for weights in half precision, which are updated in
    float32 and rounded once. ``gradient_scale`` is a number or an array of shape ().

    Source: Loshchilov and Hutter 2019, algorithm 2, with one learning rate in place of the factors alpha and eta.
    """
    g = _scaled(xp, gradient, m.dtype, gradient_scale)
    x = xp.astype(w, m.dtype, copy=False)
    m = beta_1 * m + (1 - beta_1) * g
    v = beta_2 * v + (1 - beta_2) * (g * g)
    m_hat, v_hat = m / (1 - beta_1 ** (step + 1)), v / (1 - beta_2 ** (step + 1))
    x = (1 - learning_rate * weight_decay) * x - learning_rate * (m_hat / (xp.sqrt(v_hat) + eps))
    return xp.astype(x, w.dtype, copy=False), m, v


def sgd(
    xp: Namespace,
    w: Array,
    gradient: Array,
    m: Array | None = None,
    *,
    learning_rate: float,
    momentum: float,
    nesterov: bool,
    weight_decay: float,
    gradient_scale: float | Array = 1.0,
) -> tuple[Array, ...]:
    """Return the new w and m after a step of gradient descent; w alone if there is no m, for descent without momentum.

        g = gradient_scale gradient + weight_decay w
        m = momentum m + g
        w = w - learning_rate m, or w - learning_rate (g + momentum m) with Nesterov's momentum

    Dtypes and ``gradient_scale`` are those of ``adamw``.

    Source: Sutskever et al. 2013, equations 1 to 4, with the velocity -learning_rate m.
    """
    wide = compute_dtype(xp, w.dtype)
    x, g = xp.astype(w, wide, copy=False), _scaled(xp, gradient, wide, gradient_scale)
    if weight_decay:
        g = g + weight_decay * x
    if m is None:
        return (xp.astype(x - learning_rate * g, w.dtype, copy=False),)
    m = momentum * m + g
    descent = g + momentum * m if nesterov else m
    return xp.astype(x - learning_rate * descent, w.dtype, copy=False), m


def clip_scale(xp: Namespace, gradients: Iterable[Array], clip_norm: float) -> Array:
    """min(1, clip_norm / norm), where norm is that of all gradients as one vector; () (Pascanu et al. 2013, algorithm 1)."""
    norm = xp.sqrt(sum(_square_norm(xp, x) for x in gradients))
    scale = clip_norm / xp.where(norm <= clip_norm, clip_norm, norm)  # NaN for NaN
    return xp.reshape(scale, ())


def _square_norm(xp: Namespace, x: Array) -> Array:
    """The sum of squares, (1,); in float32 for half precision."""
    x = at_least(xp, xp.astype(x, compute_dtype(xp, x.dtype), copy=False), 1)
    return xp.reshape(xp.sum(x * x), (1,))


def _scaled(xp: Namespace, gradient: Array, dtype: Any, scale: float | Array) -> Array:
    g = xp.astype(gradient, dtype, copy=False)
    if is_array(scale):
        return g * xp.astype(scale, dtype, copy=False)
    return g if scale == 1 else g * scale
