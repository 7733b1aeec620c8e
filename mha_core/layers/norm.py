"""The norm layers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self, TypeAlias

from ..algebra.arrays import Array
from ..ops import check
from ..ops.functional import layer_norm, rms_norm
from .base import Layer
from .from_torch import StateDict
from .init import Weights


@dataclass(frozen=True, eq=False)
class LayerNorm(Layer):
    """(x - mean) / sqrt(var + eps) * weight + bias (Ba, Kiros and Hinton 2016, equation 4)."""

    weight: Array | None
    """(d_model,), or None for no scaling."""
    bias: Array | None
    """(d_model,), or None for no shift."""
    eps: float = 1e-5

    @classmethod
    def init(
        cls, *, d_model: int = 512, eps: float = 1e-5, backend: str | None = None, dtype: Any = None, device: Any = None
    ) -> Self:
        """Weight 1, bias 0."""
        return cls.make(Weights(0, backend, dtype, device), d_model, eps)

    @classmethod
    def make(cls, weights: Weights, d_model: int, eps: float) -> Self:
        return cls(weights.ones(d_model), weights.zeros(d_model), eps)

    @classmethod
    def _read(cls, state: StateDict, prefix: str) -> Self:  # from nn.LayerNorm
        return cls(state.take(f"{prefix}weight"), state.optional(f"{prefix}bias"), state.eps_of(prefix))

    def _check(self) -> None:
        check.at_least_zero("eps", self.eps)

    def __call__(self, x: Array) -> Array:
        """x (..., d_model) -> (..., d_model)."""
        return layer_norm(x, self.weight, self.bias, eps=self.eps)


@dataclass(frozen=True, eq=False)
class RMSNorm(Layer):
    """x / sqrt(mean(x^2) + eps) * weight (Zhang and Sennrich 2019, equation 4)."""

    weight: Array | None
    """(d_model,), or None for no scaling."""
    eps: float = 1e-5

    @classmethod
    def init(
        cls, *, d_model: int = 512, eps: float = 1e-5, backend: str | None = None, dtype: Any = None, device: Any = None
    ) -> Self:
        """Weight 1."""
        return cls(Weights(0, backend, dtype, device).ones(d_model), eps)

    def _check(self) -> None:
        check.at_least_zero("eps", self.eps)

    def __call__(self, x: Array) -> Array:
        """x (..., d_model) -> (..., d_model)."""
        return rms_norm(x, self.weight, eps=self.eps)


@dataclass(frozen=True, eq=False)
class Identity(Layer):
    """x, unchanged: for layers that leave out a norm, such as the first of ModernBERT (Warner et al. 2024, section 2.1.1)."""

    def __call__(self, x: Array) -> Array:
        """x (..., d_model) -> (..., d_model)."""
        return x


Norm: TypeAlias = LayerNorm | RMSNorm | Identity
