"""What kernels of rows ask of arrays: numbers of a row side by side, and how many of them one access may take."""

from __future__ import annotations

from functools import cache
from math import gcd, prod
from typing import Any

import numpy

from mha_core.plugin import Call

from .launch import address, c_name

DTYPES = ("float16", "bfloat16", "float32", "float64")
_ACCESS = 16  # bytes: the widest of a thread
_NUMBERS = 2**31  # a kernel's counts are of 32 bits


def supports(call: Call) -> str | None:
    if str(call.dtype) not in DTYPES:
        return f"computes in {', '.join(DTYPES)}, not {call.dtype}"
    shapes = [shape for _, shape in call.shapes]
    if 0 in (size for shape in shapes for size in shape):
        return "has no empty axes"
    numbers = prod(shapes[0][:-1]) * max(shape[-1] for shape in shapes)  # of the widest rows that there will be
    return f"counts to {_NUMBERS - 1} numbers, not to {numbers}" if numbers >= _NUMBERS else None


def rows(x: Any) -> Any:
    """(..., d) -> (n, d), the numbers of a row side by side: a view where strides allow it, else a copy."""
    y = x.reshape(-1, x.shape[-1])
    return y if y.strides[1] == y.itemsize or y.shape[1] == 1 else y.copy()


def stride(x: Any) -> numpy.int64:
    """How many numbers lie between the beginnings of two rows; 0 where there is no array."""
    return numpy.int64(0 if x is None else x.strides[0] // x.itemsize)


def pack(length: int, *arrays: Any) -> int:
    """How many numbers one access may take: what divides the length, and where arrays and their rows begin."""
    given = [x for x in arrays if x is not None]
    size = given[0].itemsize
    places = [place for x in given for place in (address(x), *x.strides[:-1])]
    return gcd(_ACCESS, length * size, *places) // size


@cache
def wide(dtype: Any) -> Any:
    """The dtype that numbers are computed in (promise 9)."""
    return numpy.float64 if str(dtype) == "float64" else numpy.float32


@cache
def names(dtype: Any) -> tuple[str, str]:
    """What the sources call a dtype and the one that it is computed in."""
    return f"DTYPE={c_name(dtype)}", f"WIDE={c_name(numpy.dtype(wide(dtype)))}"
