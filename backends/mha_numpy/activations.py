"""Activations of a feed-forward network, computed in place, in tiles that stay in cache.

The error is a few roundings of x, not of the result. The operation ``gelu`` is precise in its tails too; here that precision
would be lost in the sums of the next product.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

import mha_core

from .scratch import scratch

# atanh(erf(x / sqrt 2)) / x in powers of x^2, fitted so that x Phi(x) is within 0.7e-7; beyond 5.6 it grows and tanh is 1
GELU = (0.79788423, 0.036334284, -3.3129992e-05, -5.5240158e-05, 3.9691095e-06, -1.3344641e-07, 1.8056164e-09)
_TILE = 1 << 17  # elements; with shorter loops two threads lose more time to the interpreter lock than they gain

InPlace = Callable[[np.ndarray], None]


def _gated_by_tanh(x: np.ndarray, p: tuple[float, ...]) -> None:
    """x (1 + tanh(x P(x^2))) / 2, with the coefficients of P in ascending order."""
    square, y = scratch("square", x.shape, x.dtype), scratch("y", x.shape, x.dtype)
    np.maximum(x, np.full(x.shape[1:], -40, dtype=x.dtype), out=x)  # the result is 0 below -40; -inf times 0 would be NaN
    np.multiply(x, x, out=square)
    np.multiply(square, p[-1], out=y)
    for c in p[-2:0:-1]:
        np.add(y, c, out=y)
        np.multiply(y, square, out=y)
    np.add(y, p[0], out=y)
    np.multiply(y, x, out=y)
    np.tanh(y, out=y)
    np.multiply(y, 0.5, out=y)
    np.add(y, 0.5, out=y)
    np.multiply(x, y, out=x)


def _relu(x: np.ndarray) -> None:
    np.maximum(x, np.zeros(x.shape[1:], dtype=x.dtype), out=x)  # a scalar in place of the row takes four times as long


def _silu(x: np.ndarray) -> None:
    """x / (1 + e^-x)."""
    y = scratch("y", x.shape, x.dtype)
    np.maximum(x, np.full(x.shape[1:], -1e4, dtype=x.dtype), out=x)  # the result is 0 below
    np.negative(x, out=y)
    np.exp(y, out=y)
    np.add(y, 1, out=y)
    np.divide(x, y, out=x)


_IN_FLOAT32: dict[str, InPlace] = {
    "gelu": partial(_gated_by_tanh, p=GELU),
    # x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2
    "gelu_tanh": partial(_gated_by_tanh, p=(math.sqrt(2 / math.pi), math.sqrt(2 / math.pi) * 0.044715)),
    "relu": _relu,
    "silu": _silu,
}


def activate(name: str, x: np.ndarray, bias: np.ndarray | None) -> None:
    """Replace x (rows, features) by f(x + bias)."""
    function = _IN_FLOAT32[name] if x.dtype == np.float32 else _as_dispatched(name)
    for tile in _tiles(x):
        if bias is not None:
            tile += bias
        function(tile)


def _tiles(x: np.ndarray) -> Iterator[np.ndarray]:
    rows = max(1, _TILE // x.shape[1])
    return (x[at : at + rows] for at in range(0, len(x), rows))


def _as_dispatched(name: str) -> InPlace:
    """Return the activation computed by the public operation, for dtypes without a formula here."""
    functions: dict[str, Any] = {"gelu": mha_core.gelu, "relu": mha_core.relu, "silu": mha_core.silu}
    functions["gelu_tanh"] = partial(mha_core.gelu, approximate="tanh")

    def compute(x: np.ndarray) -> None:
        x[...] = functions[name](x)

    return compute
