"""Updates of weights in NumPy float64, with bounds on the rounding errors."""

from __future__ import annotations

import numpy as np

from .attention import Floats
from .attention_gradients import Bounded
from .tolerance import UNIT_ROUNDOFF, compute_dtype, least


def adamw_update(
    w: Floats,
    gradient: Floats,
    m: Floats,
    v: Floats,
    *,
    dtype: str,
    learning_rate: float,
    beta_1: float,
    beta_2: float,
    eps: float,
    weight_decay: float,
    step: int,
    gradient_scale: float,
) -> tuple[Bounded, Bounded, Bounded]:
    """Return the new w, m and v (Loshchilov and Hutter 2019, algorithm 2), each with the bound of its rounding.

    The terms of m may cancel: their rounding, divided by the root of v, is that of the step.
    """
    u, u_out, tiny = UNIT_ROUNDOFF[compute_dtype(dtype)], UNIT_ROUNDOFF[dtype], least(compute_dtype(dtype))
    g = gradient * gradient_scale
    new_m, new_v = beta_1 * m + (1 - beta_1) * g, beta_2 * v + (1 - beta_2) * g * g
    size_m = beta_1 * np.abs(m) + (1 - beta_1) * np.abs(g)
    c_1, c_2 = 1 - beta_1 ** (step + 1), 1 - beta_2 ** (step + 1)
    below = np.sqrt(new_v / c_2) + eps
    moved = learning_rate * new_m / c_1 / below
    decayed = (1 - learning_rate * weight_decay) * w
    error = 8 * u * (np.abs(decayed) + learning_rate * size_m / c_1 / below) + u_out * np.abs(decayed - moved)
    return (
        (decayed - moved, 2 * error + least(dtype)),
        (new_m, 8 * u * size_m + tiny),
        (new_v, 8 * u * new_v + tiny),
    )
