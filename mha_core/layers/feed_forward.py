"""The position-wise feed-forward network with its weights."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Self

from ..algebra.arrays import Array
from ..ops.functional import check_activation, feed_forward
from .base import Layer
from .init import Weights


@dataclass(frozen=True, eq=False)
class FeedForward(Layer):
    """f(x w_1 + b_1) w_2 + b_2: w_1 (d_model, d_ff), w_2 (d_ff, d_model); f is relu, gelu, gelu_tanh or silu.

    With w_g (d_model, d_ff) the hidden features are gated: f(x w_1 + b_1) * (x w_g + b_g).

    Source: Vaswani et al. 2017, equation 2; Shazeer 2020, equation 6.
    """

    w_1: Array
    b_1: Array | None
    w_2: Array
    b_2: Array | None
    activation: str = "relu"
    w_g: Array | None = None
    b_g: Array | None = None

    @classmethod
    def init(
        cls,
        *,
        d_model: int = 512,
        d_ff: int = 2048,
        activation: str = "relu",
        gated: bool = False,
        seed: int,
        backend: str | None = None,
        dtype: Any = None,
        device: Any = None,
    ) -> Self:
        """Weights after Glorot and Bengio, biases 0."""
        return cls.make(Weights(seed, backend, dtype, device), d_model, d_ff, activation, gated=gated)

    @classmethod
    def make(cls, weights: Weights, d_model: int, d_ff: int, activation: str, *, gated: bool = False) -> Self:
        check_activation(activation)
        w_1, w_2 = weights.glorot(d_model, d_ff), weights.glorot(d_ff, d_model)
        plain = cls(w_1, weights.zeros(d_ff), w_2, weights.zeros(d_model), activation)
        return replace(plain, w_g=weights.glorot(d_model, d_ff), b_g=weights.zeros(d_ff)) if gated else plain

    def __call__(self, x: Array) -> Array:
        """x (..., d_model) -> (..., d_model)."""
        return feed_forward(x, self.w_1, self.b_1, self.w_2, self.b_2, activation=self.activation, w_g=self.w_g, b_g=self.b_g)
