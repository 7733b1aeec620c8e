"""Rounding errors carried through layers in half precision.

Each step returns the exact result and the error of each element: it rounds its result, u |y|, and passes on the errors of its
input. Rounding errors have either sign and are independent, so to first order they add up as the root of their squares. This
is what ``+`` means between error terms below; inside sqrt (...) and u (...) it is an ordinary sum.

    linear       e_y = sqrt(e_x^2 w^2) + u (2 sqrt(x^2 w^2) + |b| + |y|)
    attention    e_s = scale sqrt(e_q^2 k^2 + q^2 e_k^2),   e_y = sqrt((p e_s)^2 (v - y)^2) + sqrt(p^2 e_v^2) + bound
    layer norm   e_y = |w| / sigma (e_x + |c| sqrt(sum (c e_x)^2) / (n sigma^2) + sqrt(sum e_x^2) / n) + u (2 |y| + |b|)

``bound`` is that of ``tolerance``. Among thousands of elements some errors exceed this root, by at most a factor of ``SAFETY``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from . import reference, tolerance
from .naive_attention import Floats

SAFETY = 2.0  # largest error over the bound in seven runs of test_half_precision on numpy, torch and jax: 0.93
STEEPEST = {"relu": 1.0, "gelu": 1.13, "silu": 1.1}
"""Greatest slope of each activation."""


@dataclass(frozen=True)
class Approximate:
    """An exact array, and the estimated rounding error of each element."""

    exact: Floats
    error: Floats

    @property
    def bound(self) -> Floats:
        return SAFETY * self.error

    @property
    def T(self) -> Approximate:  # noqa: N802
        return Approximate(self.exact.T, self.error.T)


@dataclass(frozen=True)
class RoundedLayers:
    """The layers of ``reference``, with the rounding errors of ``dtype``."""

    dtype: str
    rounds_weights: bool

    @property
    def u(self) -> float:
        return tolerance.UNIT_ROUNDOFF[self.dtype]

    def given(self, x: Floats) -> Approximate:
        """Return an input, whose error is zero."""
        return Approximate(x, 0 * x)

    def linear(self, x: Approximate, w: Floats, b: Floats | None) -> Approximate:
        y = reference.linear(x.exact, w, b)
        rounding = 2 * np.sqrt(x.exact**2 @ w**2) + np.abs(0.0 if b is None else b) + np.abs(y)
        return Approximate(y, np.sqrt(x.error**2 @ w**2 + (self.u * rounding) ** 2))

    def attention(self, q: Approximate, k: Approximate, v: Approximate, allowed: Any) -> Approximate:
        """Return attention of q (L, d), k (S, d) and v (S, e)."""
        one = [x.exact[None] for x in (q, k, v)]
        exact = tolerance.exact_attention(*one, dtype=self.dtype, rounds_weights=self.rounds_weights, allowed=allowed)
        y, p, rounding = exact.out[0], exact.weights[0], exact.out_bound[0]
        scale = q.exact.shape[-1] ** -0.5
        score_error = scale * np.sqrt(q.error**2 @ k.T.exact**2 + q.exact**2 @ k.T.error**2)
        difference = (v.exact[None, :, :] - y[:, None, :]) ** 2  # (L, S, e)
        passed = np.einsum("ls,lse->le", (p * score_error) ** 2, difference) + p**2 @ v.error**2
        return Approximate(y, np.sqrt(passed + rounding**2))

    def multi_head(self, x: Approximate, net: Any, *, context: Approximate | None = None, allowed: Any = None) -> Approximate:
        context = x if context is None else context
        groups = net.num_heads // (net.num_kv_heads or net.num_heads)
        q, k, v = (
            self.linear(x, net.w_q, net.b_q),
            self.linear(context, net.w_k, net.b_k),
            self.linear(context, net.w_v, net.b_v),
        )
        heads = []
        for at in range(net.num_heads):
            of_key, of_value = (_head(y, at // groups, net.num_heads // groups) for y in (k, v))
            heads.append(self.attention(_head(q, at, net.num_heads), of_key, of_value, allowed))
        joined = Approximate(np.hstack([head.exact for head in heads]), np.hstack([head.error for head in heads]))
        return self.linear(joined, net.w_o, net.b_o)

    def feed_forward(self, x: Approximate, net: Any) -> Approximate:
        hidden = self.linear(x, net.w_1, net.b_1)
        active = getattr(reference, net.activation)(hidden.exact)
        error = np.hypot(STEEPEST[net.activation] * hidden.error, 2 * self.u * np.abs(active))
        return self.linear(Approximate(active, error), net.w_2, net.b_2)

    def layer_norm(self, x: Approximate, norm: Any) -> Approximate:
        y = reference.layer_norm(x.exact, norm.weight, norm.bias, eps=norm.eps)
        n, centred = x.exact.shape[-1], x.exact - x.exact.mean(axis=-1, keepdims=True)
        variance = (centred**2).mean(axis=-1, keepdims=True) + norm.eps

        def root(e: Floats) -> Floats:
            return np.sqrt((e**2).sum(axis=-1, keepdims=True)) / n

        passed = np.sqrt(x.error**2 + (centred * root(centred * x.error) / variance) ** 2 + root(x.error) ** 2)
        rounding = self.u * (2 * np.abs(y) + np.abs(norm.bias))
        return Approximate(y, np.hypot(np.abs(norm.weight) * passed / np.sqrt(variance), rounding))

    def residual(
        self, x: Approximate, sublayer: Callable[[Approximate], Approximate], norm: Any, norm_first: bool
    ) -> Approximate:
        y = sublayer(self.layer_norm(x, norm) if norm_first else x)
        total = Approximate(x.exact + y.exact, np.sqrt(x.error**2 + y.error**2 + (self.u * (x.exact + y.exact)) ** 2))
        return total if norm_first else self.layer_norm(total, norm)

    def encoder_layer(self, x: Approximate, layer: Any, *, allowed: Any = None) -> Approximate:
        x = self.residual(x, lambda y: self.multi_head(y, layer.attention, allowed=allowed), layer.norm_1, layer.norm_first)
        return self.residual(x, lambda y: self.feed_forward(y, layer.feed_forward), layer.norm_2, layer.norm_first)

    def decoder_layer(self, y: Approximate, memory: Approximate, layer: Any) -> Approximate:
        causal, first = np.tri(len(y.exact), dtype=bool), layer.norm_first
        y = self.residual(y, lambda z: self.multi_head(z, layer.self_attention, allowed=causal), layer.norm_1, first)
        y = self.residual(y, lambda z: self.multi_head(z, layer.cross_attention, context=memory), layer.norm_2, first)
        return self.residual(y, lambda z: self.feed_forward(z, layer.feed_forward), layer.norm_3, first)


def _head(x: Approximate, at: int, heads: int) -> Approximate:
    return Approximate(np.split(x.exact, heads, axis=-1)[at], np.split(x.error, heads, axis=-1)[at])
