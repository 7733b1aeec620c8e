"""The position-wise feed-forward layer."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Self

from ..algebra.arrays import Array
from ..algebra.int8 import Weight
from ..ops.functional import check_activation, feed_forward
from .base import Layer
from .from_torch import StateDict, transposed
from .init import Weights


@dataclass(frozen=True, eq=False)
class FeedForward(Layer):
    """f(x w_1 + b_1) w_2 + b_2, or with the gate w_g (f(x w_1 + b_1) * (x w_g + b_g)) w_2 + b_2.

    Source: Vaswani et al. 2017, equation 2; Shazeer 2020, equation 6.
    """

    w_1: Weight
    """(d_model, d_ff)."""
    b_1: Array | None
    """(d_ff,)."""
    w_2: Weight
    """(d_ff, d_model)."""
    b_2: Array | None
    """(d_model,)."""
    activation: str = "relu"
    """The name of f, one of relu, gelu, gelu_tanh and silu."""
    w_g: Weight | None = None
    """(d_model, d_ff)."""
    b_g: Array | None = None
    """(d_ff,)."""

    linear_maps = ("w_1", "w_2", "w_g")

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

    @classmethod
    def _read(cls, state: StateDict, prefix: str, activation: str) -> Self:  # from linear1 and linear2 of torch's layers
        return cls(
            transposed(state.take(f"{prefix}linear1.weight")),
            state.optional(f"{prefix}linear1.bias"),
            transposed(state.take(f"{prefix}linear2.weight")),
            state.optional(f"{prefix}linear2.bias"),
            activation,
        )

    def _check(self) -> None:
        check_activation(self.activation)

    def __call__(self, x: Array) -> Array:
        """x (..., d_model) -> (..., d_model)."""
        return feed_forward(x, self.w_1, self.b_1, self.w_2, self.b_2, activation=self.activation, w_g=self.w_g, b_g=self.b_g)
