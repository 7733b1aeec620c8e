"""Activations: gelu, relu, silu."""

from __future__ import annotations

import math
from collections.abc import Set

from .arrays import Array, Namespace, compute_dtype

# Chebyshev coefficients in y = 2t - 1 of log(Q(a) / t) + a^2 / 2, with t = T / (T + a) and Q the upper tail of the
# normal distribution: one smooth function for all a >= 0, without branches. Fitted with mpmath at 60 digits;
# tests/core/ops/test_functional.py fits them again.
_T = 3.2
_TAIL = (
    -1.4269255855545503,
    0.7018267213162713,
    0.041015264299237100,
    -0.0075321430426317386,
    -0.0017927255620759912,
    1.8285406949663842e-4,
    8.9473814047836350e-5,
    -6.6949459964417313e-6,
    -4.9636855414230390e-6,
    3.6960281494495390e-7,
    2.9119365542941923e-7,
    -2.7980406990651549e-8,
    -1.7214126225109355e-8,
    2.3932372591164910e-9,
    9.7060220346637682e-10,
    -2.0234976150945999e-10,
    -4.8120287985759916e-11,
    1.5792888153896172e-11,
    1.7314924292016872e-12,
    -1.0823643672063541e-12,
    -3.7253569231781947e-15,
    6.0686469325773338e-14,
    -6.0693153731196082e-15,
    -2.3344072810239114e-15,
    5.6063030054997061e-16,
)
_TERMS = {"float32": 12, "float64": len(_TAIL)}  # the first term left out is below 2e-8 in float32, 2e-17 in float64


def gelu(xp: Namespace, x: Array, *, approximate: str = "none") -> Array:
    """x Phi(x) (Hendrycks and Gimpel 2016, section 2), or its tanh form."""
    y = _wide(xp, x)
    if approximate == "tanh":
        y = xp.where(y == -math.inf, 0, y)  # the limit is 0; -inf times 0 would be NaN
        inner = math.sqrt(2 / math.pi) * (y + 0.044715 * (y * y * y))
        return xp.astype(0.5 * y * (1 + xp.tanh(inner)), x.dtype, copy=False)
    # |y| by selection, because no library has the right gradient of abs at 0. Beyond 40 the tail is 0, and 0 * inf would be NaN
    a = xp.minimum(xp.where(y > 0, y, -y), 40)
    tail = _upper_tail(xp, a, _TERMS["float64" if y.dtype == xp.float64 else "float32"])
    return xp.astype(xp.where(y > 0, y, 0) - a * tail, x.dtype, copy=False)


def _wide(xp: Namespace, x: Array) -> Array:
    """Return x in the dtype that it is computed in."""
    return xp.astype(x, compute_dtype(xp, x.dtype), copy=False)


def _upper_tail(xp: Namespace, a: Array, terms: int) -> Array:
    """Q(a) = 1 - Phi(a) for a >= 0, from ``terms`` coefficients by Clenshaw's recurrence."""
    t = _T / (_T + a)
    y2 = 4 * t - 2
    b1 = b2 = 0 * t
    for c in reversed(_TAIL[1:terms]):
        b1, b2 = y2 * b1 - b2 + c, b1
    return t * xp.exp(0.5 * (y2 * b1) - b2 + _TAIL[0] - 0.5 * (a * a))


def relu(xp: Namespace, x: Array) -> Array:
    """max(x, 0); NaN stays NaN."""
    return xp.where(_wide(xp, x) < 0, 0, x)


def silu(xp: Namespace, x: Array) -> Array:
    """x / (1 + exp(-x)) (Hendrycks and Gimpel 2016, section 4)."""
    y = _wide(xp, x)
    y = xp.where(y == -math.inf, 0, y)  # the limit is 0; -inf times 0 would be NaN
    e = xp.exp(-xp.abs(y))  # never overflows
    return xp.astype(y * xp.where(y < 0, e, 1) / (1 + e), x.dtype, copy=False)


# gradients: each function receives the argument, and d, the gradient of the result


def gelu_vjp(xp: Namespace, x: Array, d: Array, *, wanted: Set[str], approximate: str = "none") -> tuple[Array]:
    """d (Phi(x) + x phi(x)), with phi the density of the normal distribution, or d times the slope of the tanh form."""
    y = xp.clip(_wide(xp, x), -40.0, 40.0)  # beyond, the slope is 0 or 1, and 0 * inf would be NaN
    if approximate == "tanh":
        c = math.sqrt(2 / math.pi)
        t = xp.tanh(c * (y + 0.044715 * (y * y * y)))
        slope = 0.5 * (1 + t) + 0.5 * y * (1 - t * t) * (c * (1 + 3 * 0.044715 * (y * y)))
    else:
        tail = _upper_tail(xp, xp.abs(y), _TERMS["float64" if y.dtype == xp.float64 else "float32"])
        slope = xp.where(y > 0, 1 - tail, tail) + y * xp.exp(-0.5 * (y * y)) / math.sqrt(2 * math.pi)
    return (xp.astype(slope * _wide(xp, d), x.dtype, copy=False),)


def relu_vjp(xp: Namespace, x: Array, d: Array, *, wanted: Set[str]) -> tuple[Array]:
    """d where x > 0, and 0 at 0; NaN stays NaN."""
    return (xp.where(_wide(xp, x) <= 0, 0, xp.where(xp.isnan(x), x, d)),)


def silu_vjp(xp: Namespace, x: Array, d: Array, *, wanted: Set[str]) -> tuple[Array]:
    """d s (1 + x (1 - s)), with s = 1 / (1 + exp(-x))."""
    y = xp.clip(_wide(xp, x), -1e4, 1e4)  # beyond, the slope is 0 or 1, and 0 * inf would be NaN
    e = xp.exp(-xp.abs(y))  # never overflows
    s, opposite = xp.where(y < 0, e, 1) / (1 + e), xp.where(y < 0, 1, e) / (1 + e)
    return (xp.astype(s * (1 + y * opposite) * _wide(xp, d), x.dtype, copy=False),)
