"""Rotary embedding: each element is read once and written once.

The axes before the last are merged where the strides of x, cos and sin allow it. The arrays are copied first if more than
three axes are left, or if a last axis is strided.
"""

from __future__ import annotations

from collections.abc import Set
from math import prod
from typing import Any

import cupy
import numpy

from mha_core.plugin import Call

from .launch import Launch, run
from .rowwise import dtype_defines, pack, supports

_THREADS = 256
_MAX_AXES = 3  # before the last

Axes = list[tuple[int, tuple[int, ...]]]
"""The size of each axis, and the strides of x, cos and sin along it, in bytes."""


def rotary(x: Any, cos: Any, sin: Any, *, interleaved: bool) -> Any:
    return _rotated(x, cos, sin, interleaved, back=False)


def rotary_vjp(
    x: Any, cos: Any, sin: Any, d_out: Any, *, wanted: Set[str], interleaved: bool
) -> tuple[Any | None, Any | None, Any | None]:
    """Return the gradient of x, which is d_out rotated back."""
    return _rotated(d_out, cos, sin, interleaved, back=True) if "x" in wanted else None, None, None


def supports_vjp(call: Call) -> str | None:
    """Return why the gradients are not computed; None if they are."""
    tables = sorted(call.option("wanted") - {"x"})
    return f"has no gradient of {' and '.join(tables)}" if tables else supports(call)


def _rotated(x: Any, cos: Any, sin: Any, interleaved: bool, *, back: bool) -> Any:
    x, cos, sin = (y if y.strides[-1] == y.itemsize or y.shape[-1] == 1 else y.copy() for y in (x, cos, sin))
    if len(_merged_axes(x, cos, sin)) > _MAX_AXES:
        x, shape = cupy.ascontiguousarray(x), (*x.shape[:-1], cos.shape[-1])
        cos, sin = (cupy.ascontiguousarray(cupy.broadcast_to(table, shape)) for table in (cos, sin))
    out = cupy.empty(x.shape, dtype=x.dtype)
    run(rotation(x, cos, sin, out, interleaved=interleaved, back=back))
    return out


def rotation(x: Any, cos: Any, sin: Any, out: Any, *, interleaved: bool, back: bool = False) -> Launch:
    """Return the launch for x (..., L, head_dim), with cos and sin that broadcast to (..., L, r / 2). out is contiguous.

    ``back``: rotate by the opposite angles.

    Source: Su et al. 2021, equation 34.
    """
    features, half, axes = x.shape[-1], cos.shape[-1], _merged_axes(x, cos, sin)
    size = min(pack(length, x, cos, sin, out) for length in (half, features))
    threads = prod(x.shape[:-1]) * (features - half) // size
    axes = [(1, (0, 0, 0))] * (_MAX_AXES - len(axes)) + axes
    strides = [
        numpy.asarray([along[at] // x.itemsize for _, along in axes], dtype=numpy.int64).view("V24")[0] for at in range(3)
    ]
    return Launch(
        "rotary.cu",
        "rotary",
        (*dtype_defines(x.dtype), f"INTERLEAVED={int(interleaved)}", f"BACK={int(back)}", f"PACK={size}"),
        grid=-(-threads // _THREADS),
        block=_THREADS,
        args=(
            *(y for pair in zip((x, cos, sin), strides, strict=True) for y in pair),
            *(out, *(numpy.int32(n) for n in (axes[1][0], axes[2][0], features, half)), numpy.uint32(threads)),
        ),
    )


def _merged_axes(x: Any, cos: Any, sin: Any) -> Axes:
    """Return the axes before the last, merged into as few as possible."""
    merged: Axes = []
    for at, size in enumerate(x.shape[:-1], start=-x.ndim):
        along = tuple(0 if y.ndim < -at or y.shape[at] == 1 else y.strides[at] for y in (x, cos, sin))
        if size == 1:
            continue
        if merged and all(outer == inner * size for outer, inner in zip(merged[-1][1], along, strict=True)):
            merged[-1] = (merged[-1][0] * size, along)
        else:
            merged.append((size, along))
    return merged
