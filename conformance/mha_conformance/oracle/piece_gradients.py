"""Gradients of the pieces in NumPy float64, and bounds on their rounding errors.

Each function takes d, the gradient of the result, and the arguments of the piece. For each array that has a gradient it returns
the exact one, and a magnitude: the bound on its error divided by the unit roundoff of the dtype in which sums are computed. A
magnitude is 0 where the gradient is exact: of a relu, and of the features that a rotation leaves alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from . import reference
from .attention import Floats
from .attention_gradients import Bounded
from .tolerance import LARGEST, UNIT_ROUNDOFF, compute_dtype, least

_FAR = 40.0
"""An argument at which the slopes of activations are 0 or 1, their limits, to the last digit of float64."""
Gradients = dict[str, Bounded]
"""Exact gradients and magnitudes by the name of the argument."""


def _rows(x: Floats) -> Floats:
    """(..., n) -> (rows, n)."""
    return x.reshape(math.prod(x.shape[:-1]), x.shape[-1])


def _sum_of_rows(terms: Floats, magnitude: Floats | float = 0.0) -> Bounded:
    """Return the sum of the rows of some terms, each with an error of ``magnitude``."""
    terms, errors = _rows(terms), _rows(np.broadcast_to(magnitude, terms.shape))
    errors = errors + (math.sqrt(len(terms)) + 2) * np.abs(terms)
    return terms.sum(axis=0), errors.sum(axis=0)


def linear(d: Floats, x: Floats, w: Floats, b: Floats | None = None) -> Gradients:
    """y = x w + b: d_x = d w^T, d_w = x^T d, d_b = sum(d)."""
    rows, d_rows = _rows(x), _rows(d)
    gradients = {
        "x": (d @ w.T, (math.sqrt(w.shape[1]) + 2) * (np.abs(d) @ np.abs(w.T))),
        "w": (rows.T @ d_rows, (math.sqrt(len(rows)) + 2) * (np.abs(rows.T) @ np.abs(d_rows))),
    }
    return gradients if b is None else {**gradients, "b": _sum_of_rows(d)}


def layer_norm(
    d: Floats, x: Floats, weight: Floats | None = None, bias: Floats | None = None, *, eps: float = 1e-5
) -> Gradients:
    """With h = (x - mean) r, r = 1 / sqrt(variance + eps), g = d weight: d_x = r (g - mean(g) - h mean(g h))."""
    gradients = _norm(d, x, weight, eps, centred=True)
    return gradients if bias is None else {**gradients, "bias": _sum_of_rows(d)}


def rms_norm(d: Floats, x: Floats, weight: Floats | None = None, *, eps: float = 1e-5) -> Gradients:
    """With h = x r, r = 1 / sqrt(mean(x^2) + eps), g = d weight: d_x = r (g - h mean(g h))."""
    return _norm(d, x, weight, eps, centred=False)


def _norm(d: Floats, x: Floats, weight: Floats | None, eps: float, *, centred: bool) -> Gradients:
    def mean(terms: Floats) -> Floats:
        return terms.mean(axis=-1, keepdims=True)

    g = d if weight is None else d * weight
    middle = x - mean(x) if centred else x
    r = 1 / np.sqrt(mean(middle**2) + eps)
    h, size = middle * r, np.abs(g)
    d_x = r * (g - (mean(g) if centred else 0) - h * mean(g * h))
    # the error of h is relative to the greatest feature of the row, from which the mean is subtracted; that of r likewise
    root = math.sqrt(x.shape[-1]) + 8
    of_r = root * (np.abs(x).max(axis=-1, keepdims=True, initial=0) * r if centred else 1.0)
    of_h = of_r * ((1 if centred else 0) + np.abs(h))
    terms = size + (mean(size) if centred else 0) + np.abs(h) * mean(size * np.abs(h))
    errors = (root + of_r) * terms + of_h * mean(size * np.abs(h)) + np.abs(h) * mean(size * of_h)
    gradients = {"x": (d_x, r * errors)}
    return gradients if weight is None else {**gradients, "weight": _sum_of_rows(d * h, np.abs(d) * of_h)}


def gelu(d: Floats, x: Floats, *, approximate: str = "none") -> Gradients:
    """The normal distribution P(x) + x P'(x); or with t = tanh(z(x)): (1 + t) / 2 + x (1 - t^2) z'(x) / 2."""
    x = np.where(np.isinf(x), np.copysign(_FAR, x), x)
    if approximate == "tanh":
        t = np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))
        steep = math.sqrt(2 / math.pi) * (1 + 3 * 0.044715 * x**2)
        return _slope(d, (1 + t) / 2 + x * (1 - t**2) * steep / 2, 1 + np.abs(x) * steep)
    density = np.exp(-(x**2) / 2) / math.sqrt(2 * math.pi)
    below = np.where(x == 0, 0.5, reference.gelu(x) / np.where(x == 0, 1, x))
    return _slope(d, below + x * density, 1 + np.abs(x) * density * (1 + x**2))


def relu(d: Floats, x: Floats) -> Gradients:
    """1 where x > 0, and 0 where x <= 0; NaN stays NaN."""
    return {"x": (np.where(x > 0, d, np.where(np.isnan(x), x, 0)), np.zeros(x.shape))}


def silu(d: Floats, x: Floats) -> Gradients:
    """With p = 1 / (1 + e^-x): p (1 + x (1 - p)); 1 - p has an absolute error, which x multiplies."""
    x = np.where(np.isinf(x), np.copysign(_FAR, x), x)
    with np.errstate(over="ignore"):
        p, rest = 1 / (1 + np.exp(-x)), 1 / (1 + np.exp(x))
    return _slope(d, p * (1 + x * rest), 1 + np.abs(x) * p)


def _slope(d: Floats, slope: Floats, magnitude: Floats) -> Gradients:
    return {"x": (d * slope, 16 * np.abs(d) * magnitude)}


def rotary(d: Floats, x: Floats, cos: Floats, sin: Floats, *, interleaved: bool) -> Gradients:
    """The rotation by the opposite angle: its matrix is orthogonal."""
    d_x = reference.rotary(d, cos, -sin, interleaved=interleaved)
    size = reference.rotary(np.abs(d), np.abs(cos), -np.abs(sin), interleaved=interleaved)  # the first of each pair
    size = np.maximum(size, reference.rotary(np.abs(d), np.abs(cos), np.abs(sin), interleaved=interleaved))  # the second
    return {"x": (d_x, np.where(np.arange(x.shape[-1]) < 2 * cos.shape[-1], 4 * size, 0))}


def embedding(d: Floats, ids: Any, table: Floats) -> Gradients:
    """Each row of the table receives the sum of the gradients of its copies; exactly 0 if it has none."""
    gradients, size, count = np.zeros(table.shape), np.zeros(table.shape), np.zeros((len(table), 1))
    at = np.asarray(ids).reshape(-1)
    rows = d.reshape(len(at), table.shape[-1])
    np.add.at(gradients, at, rows)
    np.add.at(size, at, np.abs(rows))
    np.add.at(count, at, 1)
    return {"table": (gradients, np.where(count > 1, np.sqrt(count), 0) * size)}


def dropout(d: Floats, x: Floats, keep: Any, *, rate: float) -> Gradients:
    """d / (1 - rate) where x was kept, and exactly 0 elsewhere."""
    d_x = np.where(keep, d / (1 - rate), 0)
    return {"x": (d_x, 2 * np.abs(d_x))}


def bounded(gradients: Gradients, dtype: str) -> dict[str, Bounded]:
    """Return gradients with bounds on their errors, for sums in the wide dtype that are rounded once to ``dtype``."""
    u, u_out = UNIT_ROUNDOFF[compute_dtype(dtype)], UNIT_ROUNDOFF[dtype]
    both = 2.0 if dtype == "float64" else 1.0  # the oracle computes in float64 too
    bounds = {}
    for name, (exact, magnitude) in gradients.items():
        bound = both * (u * magnitude + u_out * np.abs(exact)) + least(dtype)
        bound = np.where(np.abs(exact) + bound < LARGEST[dtype], bound, np.inf)
        bounds[name] = exact, np.where((magnitude > 0) & ~np.isinf(exact), bound, 0)
    return bounds


_PIECES = (linear, layer_norm, rms_norm, gelu, relu, silu, rotary, embedding, dropout)
GRADIENTS: dict[str, Callable[..., Gradients]] = {piece.__name__: piece for piece in _PIECES}
"""The gradients of each piece, by its name."""
VALUES: dict[str, Callable[..., Bounded]] = {
    "embedding": lambda ids, table: (table[ids], np.zeros(np.shape(table[ids]))),
    "dropout": lambda x, keep, *, rate: (y := np.where(keep, x / (1 - rate), 0), 2 * np.abs(y)),
}
"""The values of the pieces that no kernel computes, with their magnitudes, by the name of the piece."""
