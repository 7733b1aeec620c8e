"""Norms over the last axis, of a sum that is made on the way: one read, one write, statistics in float32 or float64.

Rows may lie apart in memory; an array whose last axis is strided, or whose rows have no one stride, is copied first.
"""

from __future__ import annotations

from typing import Any

import cupy
import numpy

from .launch import Launch, run
from .rows import names, pack, rows, stride, supports, wide

__all__ = ["layer_norm", "norm", "norm_of_sum", "rms_norm", "supports"]

_REGISTERS = 32  # of 4 bytes, for the numbers that a thread holds
_THREADS = 512  # of a block, at most: 1024 have 64 registers each, and spill in float64 (NVRTC 13.5, sm_100)
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
    """LayerNorm of rows x + b + residual (n, d), which go to ``total`` too, by the layer's weight, bias and eps."""
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
    """Of x + b + residual, which is written to ``total`` too, where there is one.

    x, residual, total and out (n, d), the last two without gaps; weight, bias and b (1, d). All but x and out may be None.

    Source: Ba, Kiros and Hinton 2016, equation 4; not ``centred``, Zhang and Sennrich 2019, equation 4.
    """
    count, length = x.shape
    size = pack(length, x, b, residual, total, weight, bias, out)
    threads, each = _shape(-(-length // size), size * wide(x.dtype)().itemsize // 4)
    together = 8 if threads == _WARP and each else 1  # rows of a block: one warp for each, 256 threads at work
    defines = (
        *names(x.dtype),
        f"CENTRED={int(centred)}",
        *(f"{name}={value}" for name, value in (("PACK", size), ("THREADS", threads), ("EACH", max(1, each)))),
        f"ROWS={together}",
    )
    return Launch(
        "norms.cu",
        "normalize" if each else "normalize_long_rows",
        defines,
        grid=-(-count // together),
        block=threads * together,
        args=(
            *(x, stride(x), b, residual, stride(residual), total, weight, bias, out),
            *(numpy.int32(count), numpy.int32(length), wide(x.dtype)(eps)),
        ),
    )


def _shape(packs: int, registers: int) -> tuple[int, int]:
    """Threads of a row, and packs of a thread: 0 where the row does not fit into registers, and is read again.

    One pack for each thread up to 256 of them, then up to four packs, then more threads: few threads wait less for each other.
    """
    most = min(8, _REGISTERS // registers)
    for threads, each in ((_WARP, 1), (64, 1), (128, 1), (256, 1), (256, 2), (256, 4), (_THREADS, 4), (_THREADS, 8)):
        if each <= most and packs <= threads * each:
            return threads, each
    return _THREADS, 0
