"""The optimisers: AdamW, and gradient descent with momentum."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..algebra.arrays import Array, Namespace
from ..algebra.updates import sgd
from ..ops import check
from ..ops.updates import adamw
from .optimiser import Optimiser, Rate


@dataclass(frozen=True)
class AdamW(Optimiser):
    """Adam with decoupled weight decay.

    Half-precision weights have float32 moments, are updated in float32, and are rounded once in each step.

    Source: Loshchilov and Hutter 2019, algorithm 2, with one learning rate in place of the factors alpha and eta; Kingma and
    Ba 2015. Raises TypeError for a setting that is not a number, ValueError for one that is out of range.

    >>> import numpy as np, mha_core as mha
    >>> optimiser = mha.AdamW(learning_rate=0.1, weight_decay=0.0)
    >>> w, gradient = np.asarray([1.0, 1.0]), np.asarray([0.5, -3.0])
    >>> w, state = optimiser.step(w, gradient, optimiser.init(w))
    >>> w.round(3)
    array([0.9, 1.1])
    """

    learning_rate: Rate = 1e-3
    """A number, or a function from the number of the step (0, 1, ...) to one, such as ``warmup_cosine``."""
    beta_1: float = 0.9
    """The decay of m, the mean of gradients; at least 0 and below 1."""
    beta_2: float = 0.999
    """The decay of v, the mean of their squares; at least 0 and below 1."""
    eps: float = 1e-8
    """Added to sqrt(v); above 0."""
    weight_decay: float = 0.01
    """A step shrinks each weight by this times the learning rate."""
    clip_norm: float | None = None
    """All gradients are scaled down so that their norm, as one vector, is at most this (Pascanu et al. 2013)."""

    def __post_init__(self) -> None:
        self._check_settings()
        check.below_one("beta_1", self.beta_1)
        check.below_one("beta_2", self.beta_2)
        check.number("eps", self.eps, above_zero=True)
        check.at_least_zero("weight_decay", self.weight_decay)

    @property
    def _num_moments(self) -> int:
        return 2

    def _update(self, xp: Namespace, w: Array, gradient: Array, *moments: Array, **options: Any) -> tuple[Array, ...]:
        settings = {"beta_1": self.beta_1, "beta_2": self.beta_2, "eps": self.eps, "weight_decay": self.weight_decay}
        updated: tuple[Array, ...] = adamw(w, gradient, *moments, **settings, **options)
        return updated


@dataclass(frozen=True)
class SGD(Optimiser):
    """Gradient descent, with momentum if it is above 0.

    The weight decay is added to the gradient, as is usual for this optimiser. Half-precision weights are updated in float32 and
    rounded once in each step.

    Source: Sutskever et al. 2013, section 2, with the velocity in units of the gradient. Raises TypeError for a setting that is
    not a number, ValueError for one that is out of range.

    >>> import numpy as np, mha_core as mha
    >>> optimiser = mha.SGD(learning_rate=0.1)
    >>> w, gradient = np.asarray([1.0, 1.0]), np.asarray([0.5, -3.0])
    >>> w, state = optimiser.step(w, gradient, optimiser.init(w))
    >>> w
    array([0.95, 1.3 ])
    """

    learning_rate: Rate
    """A number, or a function from the number of the step (0, 1, ...) to one, such as ``warmup_cosine``."""
    momentum: float = 0.0
    """The decay of m, the sum of gradients; at least 0 and below 1."""
    nesterov: bool = False
    """True if the gradient of the next step is anticipated (Sutskever et al. 2013, equation 4)."""
    weight_decay: float = 0.0
    """Each gradient is that of the loss plus weight_decay / 2 times the sum of squares of all weights."""
    clip_norm: float | None = None
    """All gradients are scaled down so that their norm, as one vector, is at most this (Pascanu et al. 2013)."""

    def __post_init__(self) -> None:
        self._check_settings()
        check.below_one("momentum", self.momentum)
        check.at_least_zero("weight_decay", self.weight_decay)
        if self.nesterov and not self.momentum:
            raise ValueError("nesterov is set, but momentum is 0; expected a momentum above 0")

    @property
    def _num_moments(self) -> int:
        return 1 if self.momentum else 0

    def _update(self, xp: Namespace, w: Array, gradient: Array, *moments: Array, **options: Any) -> tuple[Array, ...]:
        options |= {"momentum": self.momentum, "nesterov": self.nesterov, "weight_decay": self.weight_decay}
        m = moments[0] if moments else None
        return sgd(xp, w, gradient, m, **{name: value for name, value in options.items() if name != "step"})
