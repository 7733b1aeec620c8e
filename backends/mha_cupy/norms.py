"""Norms over the last axis, fused with the addition of a bias and a residual; mean and variance are float32 or float64.

Each element is read once and written once. Rows may have any stride. An array is copied first if its last axis is strided or
its rows have no common stride.
"""

from __future__ import annotations

from typing import Any

import cupy
import numpy

from .launch import Launch, run
from .rowwise import dtype_defines, pack, rows, stride, wide

__all__ = ["layer_norm", "norm", "norm_of_sum", "rms_norm"]

_REGISTERS = 32  # of 4 bytes, for the elements that a thread holds
_MAX_THREADS = 512  # of a row: 1024 threads have 64 registers each, and spill in float64 (NVRTC 13.5, sm_100)
_WARP = 32


def layer_norm(x: Any, weight: Any, bias: Any, *, eps: float) -> Any:
    return _normed(x, weight, bias, eps, centred=True)


def rms_norm(x: Any, weight: Any, *, eps: float) -> Any:
    return _normed(x, weight, None, eps, centred=False)


def _normed(x: Any, weight: Any, bias: Any, eps: float, *, centred: bool) -> Any:
    out = cupy.empty(x.shape, dtype=x.dtype)
    weight, bias = (None if p is None else rows(p) for p in (weight, bias))
    run(norm(rows(x), weight, bias, rows(out), eps=eps, centred=centred))
    return out


def norm_of_sum(x: Any, b: Any, residual: Any, layer: Any, *, total: Any = None) -> Any:
    """LayerNorm of x + b + residual (n, d), with the layer's weight, bias and eps. The sum is written to ``total`` if given."""
    out = cupy.empty(x.shape, dtype=x.dtype)
    b, weight, bias = (None if p is None else rows(p) for p in (b, layer.weight, layer.bias))
    run(norm(rows(x), weight, bias, out, eps=layer.eps, b=b, residual=residual, total=total))
    return out


def norm(
    x: Any,
    weight: Any,
    bias: Any,
    out: Any,
    *,
    eps: float,
    centred: bool = True,
    b: Any = None,
    residual: Any = None,
    total: Any = None,
) -> Launch:
    """Return the launch of the norm of x + b + residual. The sum is written to ``total`` if given.

    x, residual, total and out (n, d); weight, bias and b (1, d). total and out are contiguous. All but x and out may be None.

    Source: Ba, Kiros and Hinton 2016, equation 4; if not ``centred``, Zhang and Sennrich 2019, equation 4.
    """
    count, length = x.shape
    size = pack(length, x, b, residual, total, weight, bias, out)
    threads, each = threads_of_row(-(-length // size), size * wide(x.dtype)().itemsize // 4)
    rows_of_block = 8 if threads == _WARP and each else 1  # a warp for each row: 256 threads in a thread block
    defines = (
        *dtype_defines(x.dtype),
        f"CENTRED={int(centred)}",
        *(f"{name}={value}" for name, value in (("PACK", size), ("THREADS", threads), ("EACH", max(1, each)))),
        f"ROWS={rows_of_block}",
    )
    return Launch(
        "norms.cu",
        "normalize" if each else "normalize_long_rows",
        defines,
        grid=-(-count // rows_of_block),
        block=threads * rows_of_block,
        args=(
            *(x, stride(x), b, residual, stride(residual), total, weight, bias, out),
            *(numpy.int32(count), numpy.int32(length), wide(x.dtype)(eps)),
        ),
    )


def threads_of_row(packs: int, registers: int) -> tuple[int, int]:
    """Return how many threads a row has, and how many packs each holds: 0 if the row does not fit into registers.

    Up to 256 threads hold one pack each; then each holds up to four packs; then there are more threads. Few threads spend less
    time waiting for each other.
    """
    most = min(8, _REGISTERS // registers)
    for threads, each in ((_WARP, 1), (64, 1), (128, 1), (256, 1), (256, 2), (256, 4), (_MAX_THREADS, 4), (_MAX_THREADS, 8)):
        if each <= most and packs <= threads * each:
            return threads, each
    return _MAX_THREADS, 0
