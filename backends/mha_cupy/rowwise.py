"""Helpers of the row-wise kernels: limits on calls, arrays as rows, the width of a memory access, dtypes."""

from __future__ import annotations

from functools import cache
from math import gcd, prod
from typing import Any

import numpy

from mha_core.plugin import Call

from .launch import address, c_name

DTYPES = ("float16", "bfloat16", "float32", "float64")
_MAX_ACCESS = 16  # bytes that a thread reads or writes in one access, at most
_MAX_ELEMENTS = 2**31 - 1  # the kernels count in 32 bits


def supports(call: Call) -> str | None:
    shapes = [shape for _, shape in call.shapes]
    widest = max((shape[-1] for shape in shapes if shape), default=1)  # of the intermediates
    return reason_against(call, *shapes, elements=prod(shapes[0][:-1]) * widest)


def reason_against(call: Call, *shapes: tuple[int, ...], elements: int = 0) -> str | None:
    """Return why no kernel computes in the call's dtype, with these shapes, or with so many elements; None if one does."""
    if call.dtype_name not in DTYPES:
        return f"supports {', '.join(DTYPES)}, not {call.dtype}"
    if any(0 in shape for shape in shapes):
        return "does not support empty axes"
    return f"supports up to {_MAX_ELEMENTS} elements, not {elements}" if elements > _MAX_ELEMENTS else None


def rows(x: Any) -> Any:
    """Return (..., d) as (n, d) with each row contiguous: a view if the strides allow it, else a copy."""
    y = x.reshape(-1, x.shape[-1])
    return y if y.strides[1] == y.itemsize or y.shape[1] == 1 else y.copy()


def stride(x: Any) -> numpy.int64:
    """Return the distance between the starts of two rows, in elements; 0 if there is no array."""
    return numpy.int64(0 if x is None else x.strides[0] // x.itemsize)


def pack(length: int, *arrays: Any) -> int:
    """Return how many elements one access may take, so that all accesses to rows of ``length`` elements are aligned."""
    present = [x for x in arrays if x is not None]
    size = present[0].itemsize
    offsets = [offset for x in present for offset in (address(x), *x.strides[:-1])]
    return max(1, gcd(_MAX_ACCESS, length * size, *offsets) // size)  # NumPy's arrays, in tests, may begin inside an element


@cache
def wide(dtype: Any) -> Any:
    """Return the dtype that a kernel computes in (promise 9)."""
    return numpy.float64 if str(dtype) == "float64" else numpy.float32


@cache
def dtype_defines(dtype: Any) -> tuple[str, str]:
    """Return the defines that name a dtype and the dtype that the kernel computes in."""
    return f"DTYPE={c_name(dtype)}", f"WIDE={c_name(numpy.dtype(wide(dtype)))}"
