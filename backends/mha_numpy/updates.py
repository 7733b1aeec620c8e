"""Updates of weights by optimisers, in tiles that stay in cache; one pass over each array in memory."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .scratch import scratch
from .threads import num_threads, run

_TILE = 1 << 17  # elements; with shorter loops two threads lose more time to the interpreter lock than they gain
_TASK = 1 << 17  # elements for which another thread is worth waking


def adamw(
    w: np.ndarray,
    gradient: np.ndarray,
    m: np.ndarray,
    v: np.ndarray,
    *,
    learning_rate: float,
    beta_1: float,
    beta_2: float,
    eps: float,
    weight_decay: float,
    step: int,
    gradient_scale: Any = 1.0,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """One step of AdamW, as ``mha_core.algebra.updates.adamw``. It writes into m and v, but not into w.

    With c_1 = 1 - beta_1^t and c_2 = sqrt(1 - beta_2^t), the step m / c_1 / (sqrt(v) / c_2 + eps) is computed as
    (c_2 / c_1) m / (sqrt(v) + c_2 eps).
    """
    m, v = (np.require(x, requirements=("C", "W")) for x in (m, v))  # copies if they were read from a file
    new = np.empty(w.shape, dtype=w.dtype)
    weights, gradients, flat_m, flat_v, out = (np.ascontiguousarray(x).reshape(-1) for x in (w, gradient, m, v, new))
    scale = float(gradient_scale)
    c_1, c_2 = 1 - beta_1 ** (step + 1), math.sqrt(1 - beta_2 ** (step + 1))
    size = _tile_size(new.size)

    def tile(at: int) -> None:
        span = slice(at, at + size)
        g, m, v, w = gradients[span], flat_m[span], flat_v[span], out[span]
        y = scratch("y", g.shape, g.dtype)
        if scale != 1:
            g = np.multiply(g, scale, out=w)  # w is not needed before the end
        np.multiply(g, 1 - beta_1, out=y)
        np.multiply(m, beta_1, out=m)
        np.add(m, y, out=m)
        np.multiply(g, g, out=y)
        np.multiply(y, 1 - beta_2, out=y)
        np.multiply(v, beta_2, out=v)
        np.add(v, y, out=v)
        np.sqrt(v, out=y)
        np.add(y, c_2 * eps, out=y)
        np.divide(m, y, out=y)
        np.multiply(y, learning_rate * c_2 / c_1, out=y)
        np.multiply(weights[span], 1 - learning_rate * weight_decay, out=w)
        np.subtract(w, y, out=w)

    with np.errstate(all="ignore"):  # NaN and infinity in, NaN and infinity out
        run(tile, range(0, new.size, size))
    return new, m, v


def _tile_size(elements: int) -> int:
    """Return a size of tiles that gives each thread as many of them; one tile for arrays too small to be shared."""
    if elements < _TASK:
        return max(1, elements)
    rounds = math.ceil(elements / (_TILE * num_threads()))
    return math.ceil(elements / (rounds * num_threads()))
