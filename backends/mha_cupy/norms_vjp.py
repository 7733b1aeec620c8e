"""Gradients of norms: that of x in one launch for each row, those of weight and bias as sums over rows in a fixed order."""

from __future__ import annotations

from collections.abc import Set
from typing import Any

import cupy

from .columns import column_sums
from .launch import Launch, run
from .norms import rows_launch
from .rowwise import pack, rows, stride, wide


def layer_norm_vjp(
    x: Any, weight: Any, bias: Any, d_out: Any, *, wanted: Set[str], eps: float
) -> tuple[Any | None, Any | None, Any | None]:
    return _gradients(x, weight, d_out, wanted, eps, centred=True)


def rms_norm_vjp(x: Any, weight: Any, d_out: Any, *, wanted: Set[str], eps: float) -> tuple[Any | None, Any | None]:
    return _gradients(x, weight, d_out, wanted, eps, centred=False)[:2]


def _gradients(
    x: Any, weight: Any, d_out: Any, wanted: Set[str], eps: float, *, centred: bool
) -> tuple[Any | None, Any | None, Any | None]:
    out = cupy.empty(x.shape, dtype=x.dtype) if "x" in wanted else None
    flat, d = rows(x), rows(d_out)
    d_weight = d_bias = None
    if wanted & {"x", "weight"}:
        mean, factor = (cupy.empty((flat.shape[0],), dtype=wide(x.dtype)) for _ in range(2))
        of_x = None if out is None else out.reshape(-1, x.shape[-1])
        run(normalize_vjp(flat, d, None if weight is None else rows(weight), of_x, mean, factor, eps=eps, centred=centred))
    if "weight" in wanted:
        d_bias, d_weight = column_sums(d, x=flat, mean=mean, factor=factor, sums="bias" in wanted)
    elif "bias" in wanted:
        d_bias, _ = column_sums(d)
    return out, d_weight, d_bias


def normalize_vjp(x: Any, d: Any, weight: Any, out: Any, mean: Any, factor: Any, *, eps: float, centred: bool) -> Launch:
    """Return the launch that fills out (n, d), and mean and factor (n,), from x and d (n, d) and weight (1, d) or None.

    out is contiguous; it may be None.
    """
    size = pack(x.shape[1], x, d, weight, out)
    args = (x, stride(x), d, stride(d), weight, out, mean, factor)
    return rows_launch("norms_vjp.cu", "normalize_vjp", x, size, 2, args, eps=eps, centred=centred)
