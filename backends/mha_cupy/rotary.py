"""Rotary embedding: one read, one write.

Of the axes before the last, those that lie alike in x, cos and sin are taken as one. Where more than three are left, or a last
axis is strided, the arrays are copied first.
"""

from __future__ import annotations

from math import prod
from typing import Any

import cupy
import numpy

from .launch import Launch, run
from .rows import names, pack, supports

__all__ = ["rotary", "supports", "turned"]

_THREADS = 256
_AXES = 3  # before the last

Axes = list[tuple[int, tuple[int, ...]]]
"""The size of each axis, and the strides in bytes of x, cos and sin along it."""


def rotary(x: Any, cos: Any, sin: Any, *, interleaved: bool) -> Any:
    x, cos, sin = (y if y.strides[-1] == y.itemsize or y.shape[-1] == 1 else y.copy() for y in (x, cos, sin))
    if len(_axes(x, cos, sin)) > _AXES:
        x, shape = cupy.ascontiguousarray(x), (*x.shape[:-1], cos.shape[-1])
        cos, sin = (cupy.ascontiguousarray(cupy.broadcast_to(table, shape)) for table in (cos, sin))
    out = cupy.empty(x.shape, dtype=x.dtype)
    run(turned(x, cos, sin, out, interleaved=interleaved))
    return out


def turned(x: Any, cos: Any, sin: Any, out: Any, *, interleaved: bool) -> Launch:
    """x (..., L, head_dim), cos and sin broadcast to (..., L, r / 2), out as x and without gaps.

    Source: Su et al. 2021, equation 34.
    """
    features, half, axes = x.shape[-1], cos.shape[-1], _axes(x, cos, sin)
    size = min(pack(length, x, cos, sin, out) for length in (half, features))
    threads = prod(x.shape[:-1]) * (features - half) // size
    axes = [(1, (0, 0, 0))] * (_AXES - len(axes)) + axes
    strides = [
        numpy.asarray([along[at] // x.itemsize for _, along in axes], dtype=numpy.int64).view("V24")[0] for at in range(3)
    ]
    return Launch(
        "rotary.cu",
        "rotary",
        (*names(x.dtype), f"INTERLEAVED={int(interleaved)}", f"PACK={size}"),
        grid=-(-threads // _THREADS),
        block=_THREADS,
        args=(
            *(y for pair in zip((x, cos, sin), strides, strict=True) for y in pair),
            *(out, *(numpy.int32(n) for n in (axes[1][0], axes[2][0], features, half)), numpy.uint32(threads)),
        ),
    )


def _axes(x: Any, cos: Any, sin: Any) -> Axes:
    """Those before the last, as few as they can be."""
    found: Axes = []
    for at, size in enumerate(x.shape[:-1], start=-x.ndim):
        along = tuple(0 if y.ndim < -at or y.shape[at] == 1 else y.strides[at] for y in (x, cos, sin))
        if size == 1:
            continue
        if found and all(outer == inner * size for outer, inner in zip(found[-1][1], along, strict=True)):
            found[-1] = (found[-1][0] * size, along)
        else:
            found.append((size, along))
    return found
