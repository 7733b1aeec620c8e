"""The linear map in half precision, through float32: of float16 NumPy makes a product without the BLAS, 180 times slower."""

from __future__ import annotations

import numpy as np

from mha_core.plugin import Call


def supports(call: Call) -> str | None:
    return None if str(call.dtype) in ("float16", "bfloat16") else f"computes half precision, not {call.dtype}"


def linear(x: np.ndarray, w: np.ndarray, b: np.ndarray | None) -> np.ndarray:
    """x w + b, rounded once."""
    y = x.astype(np.float32) @ w.astype(np.float32)
    if b is not None:
        y += b
    return y.astype(x.dtype)
