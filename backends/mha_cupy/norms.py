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
    size = pack(x.shape[1], x, b, residual, total, weight, bias, out)
    args = (x, stride(x), b, residual, stride(residual), total, weight, bias, out)
    return rows_launch("norms.cu", "normalize", x, size, 1, args, eps=eps, centred=centred)


def rows_launch(
    source: str, kernel: str, x: Any, size: int, held: int, args: tuple[Any, ...], *, eps: float, centred: bool
) -> Launch:
    """Return the launch of a kernel for the rows of x (n, d), of which it holds ``held`` numbers for each element."""
    (count, length), number = x.shape, wide(x.dtype)
    threads, each = threads_of_row(-(-length // size), held * size * number().itemsize // 4)
    rows_of_block = 8 if threads == _WARP and each else 1  # a warp for each row: 256 threads in a thread block
    sizes = {"CENTRED": int(centred), "PACK": size, "THREADS": threads, "ROWS": rows_of_block, "EACH": each}
    return Launch(
        source,
        kernel,
        (*dtype_defines(x.dtype), *(f"{name}={value}" for name, value in sizes.items())),
        grid=-(-count // rows_of_block),
        block=threads * rows_of_block,
        args=(*args, numpy.int32(count), numpy.int32(length), number(eps)),
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
