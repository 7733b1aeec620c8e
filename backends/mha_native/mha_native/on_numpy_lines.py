"""GELU, norms and layers of NumPy arrays in float32. Threads and float32 products are those of the NumPy kernels."""

from __future__ import annotations

from collections.abc import Set
from typing import Any

import numpy as np

from mha_core.plugin import Call
from mha_numpy.shared import Chunks, activate, by_rows, check, in_tiles, supports_gelu, supports_norms
from mha_numpy.shared import supports_layers as supports_chunks

from .level import native
from .on_numpy_int8 import linear

__all__ = [
    "encoder_layer",
    "feed_forward",
    "gelu",
    "gelu_vjp",
    "layer_norm",
    "rms_norm",
    "supports",
    "supports_gelu",
    "supports_layers",
]

check(1, "mha-native")
_GELU, _GELU_VJP, _LAYER_NORM, _RMS_NORM = range(4)  # as in problem.h


def supports(call: Call) -> str | None:
    """Return why norms are not computed here, or None."""
    return supports_norms(call) or (None if call.dtype_name == "float32" else f"computes in float32, not {call.dtype}")


def supports_layers(call: Call) -> str | None:
    """Return why layers are not computed here, or None."""
    return supports_chunks(call) or supports(call)


def gelu(x: np.ndarray, *, approximate: str) -> np.ndarray:
    """x Phi(x)."""
    return _by_tiles(_GELU, x, None)


def gelu_vjp(x: np.ndarray, d_out: np.ndarray, *, wanted: Set[str], approximate: str) -> tuple[np.ndarray]:
    """d (Phi(x) + x phi(x))."""
    return (_by_tiles(_GELU_VJP, x, _dense(d_out.reshape(-1))),)


def _by_tiles(what: int, x: np.ndarray, other: np.ndarray | None) -> np.ndarray:
    y = np.empty(x.shape, dtype=x.dtype)
    flat, to = _dense(x.reshape(-1)), y.reshape(-1)

    def tile(part: slice) -> None:
        a = None if other is None else other[part]
        native.lines(what, flat[part], a, None, 0.0, to[part][None])

    in_tiles(tile, flat.size)
    return y


def layer_norm(x: np.ndarray, weight: np.ndarray | None, bias: np.ndarray | None, *, eps: float) -> np.ndarray:
    """(x - mean) / sqrt(var + eps) * weight + bias."""
    return by_rows(x, lambda rows, to: write_normed(rows, weight, bias, eps, to))


def rms_norm(x: np.ndarray, weight: np.ndarray | None, *, eps: float) -> np.ndarray:
    """x / sqrt(mean(x^2) + eps) * weight."""
    return by_rows(x, lambda rows, to: native.lines(_RMS_NORM, _dense(rows), _dense(weight), None, eps, to))


def write_normed(x: np.ndarray, weight: Any, bias: Any, eps: float, out: np.ndarray) -> None:
    """Write the layer norm of x (rows, features) to ``out``, which may be x."""
    native.lines(_LAYER_NORM, _dense(x), _dense(weight), _dense(bias), eps, out)


def activate_lines(name: str, x: np.ndarray, bias: np.ndarray | None) -> None:
    """Replace x (rows, features) by f(x + bias)."""
    if name == "gelu":
        native.lines(_GELU, x, _dense(bias), None, 0.0, x)
    else:
        activate(name, x, bias)


def _dense(x: Any) -> Any:
    """Return an array whose rows have no gaps."""
    return x if x is None or x.strides[-1] == x.itemsize else np.ascontiguousarray(x)


_chunks = Chunks(activate_lines, write_normed, linear)
feed_forward, encoder_layer = _chunks.feed_forward, _chunks.encoder_layer
