"""Batched matrix products by the cuBLAS that CuPy contains, accumulated in float32, without copies of transposed views.

``cupy.matmul`` copies operands that are not contiguous, converts stacks of float16 to float32, and fails on stacks of bfloat16
(https://github.com/cupy/cupy/pull/10317).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from itertools import product as cartesian
from typing import Any

from .launch import address

Stride = tuple[int, int, int]
"""Steps in a, b and out from one matrix to the next, in elements."""


@dataclass(frozen=True)
class Operand:
    """A matrix as cuBLAS reads it."""

    transposed: bool
    """True if its columns are contiguous, instead of its rows."""
    leading: int
    """Elements from one contiguous row (column, if transposed) to the next."""


@dataclass(frozen=True)
class GemmCalls:
    """The cuBLAS calls for out[..., m, n] = a[..., m, k] b[..., k, n]."""

    a: Operand
    b: Operand
    leading: int
    """Elements from one row of out to the next."""
    count: int
    """Products in each call."""
    step: Stride
    """Steps from one product of a call to the next."""
    offsets: tuple[Stride, ...]
    """Where each call begins."""


@lru_cache(maxsize=4096)
def operand(shape: tuple[int, ...], strides: tuple[int, ...]) -> Operand | None:
    """Return how cuBLAS reads the last two axes without a copy; None if it cannot. Strides are in elements."""
    (rows, cols), (down, across) = shape[-2:], strides[-2:]
    if (across == 1 or cols == 1) and (down >= cols or rows == 1):
        return Operand(False, max(cols, down if rows > 1 else cols))
    if (down == 1 or rows == 1) and (across >= rows or cols == 1):
        return Operand(True, max(rows, across if cols > 1 else rows))
    return None


@lru_cache(maxsize=4096)
def gemm_calls(shape: tuple[int, ...], a: Operand, b: Operand, out: Operand, strides: tuple[Stride, ...]) -> GemmCalls:
    """Return the calls for stacks of ``shape``, whose axes have these strides. The longest run of equal steps is one call."""
    axes = [(size, stride) for size, stride in zip(shape, strides, strict=True) if size != 1]
    joined: list[tuple[int, Stride]] = []
    for size, stride in axes:
        if joined and joined[-1][1] == tuple(size * step for step in stride):
            joined[-1] = (joined[-1][0] * size, stride)
        else:
            joined.append((size, stride))
    joined.sort(key=lambda axis: axis[0])
    count, step = joined.pop() if joined else (1, (0, 0, 0))
    places = cartesian(*([tuple(at * x for x in stride) for at in range(size)] for size, stride in joined))
    offsets = tuple((sum(p[0] for p in place), sum(p[1] for p in place), sum(p[2] for p in place)) for place in places)
    return GemmCalls(a, b, out.leading, count, step, offsets)


def product(a: Any, b: Any, out: Any, alpha: float = 1.0, *, add: bool = False) -> None:
    """Compute out = alpha a b on the current stream, or out + alpha a b if ``add``.

    a (..., m, k) and b (..., k, n) have one dtype and broadcast to out (..., m, n), which has that dtype or float32. Rows of
    out are contiguous. Sums are float32, or float64 for float64.
    """
    import numpy

    a, b = _readable(a), _readable(b)
    (m, n), k = out.shape[-2:], a.shape[-1]
    calls = _calls(a, b, out)
    if len(calls.offsets) > _FEW_CALLS and all(
        x.size <= _SMALL or _is_stack(x) for x in (a, b)
    ):  # heads of a batched projection
        a, b = (x if _is_stack(x) else _as_stack(x) for x in (a, b))
        calls = _calls(a, b, out)
    blas, handle = _cublas()
    double = a.dtype == numpy.float64
    scalars = numpy.asarray([alpha, float(add)], dtype=numpy.float64 if double else numpy.float32)
    compute = blas.CUBLAS_COMPUTE_64F if double else blas.CUBLAS_COMPUTE_32F
    places = [(address(x), x.dtype.itemsize, _TYPES[str(x.dtype)]) for x in (a, b, out)]
    mode = blas.getMathMode(handle)
    blas.setMathMode(handle, mode | _NO_REDUCED_PRECISION)  # CuPy uses this thread's handle too
    try:
        for offsets in calls.offsets:
            (pa, ta), (pb, tb), (pc, tc) = (
                (at + by * size, kind) for (at, size, kind), by in zip(places, offsets, strict=True)
            )
            # cuBLAS is column-major and sees each matrix transposed: out^T = b^T a^T
            blas.gemmStridedBatchedEx(
                *(handle, int(calls.b.transposed), int(calls.a.transposed), n, m, k, scalars.ctypes.data),
                *(pb, tb, calls.b.leading, calls.step[1], pa, ta, calls.a.leading, calls.step[0]),
                *(scalars.ctypes.data + scalars.itemsize, pc, tc, calls.leading, calls.step[2]),
                *(calls.count, compute, blas.CUBLAS_GEMM_DEFAULT),
            )
    finally:
        blas.setMathMode(handle, mode)


# CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION in cublas_api.h. Without it, partial sums over many keys may be rounded to
# the dtype of ``out`` before they are added, and before ``alpha`` brings them into the range of float16.
_NO_REDUCED_PRECISION = 16
_FEW_CALLS = 3  # take about as long as copies of both operands and one call
_SMALL = 1 << 22  # elements that a GPU copies in the time of a launch: 16 MB read and written in half precision
_TYPES = {"float32": 0, "float64": 1, "float16": 2, "bfloat16": 14}  # cudaDataType in library_types.h


def missing() -> str | None:
    """Return why this CuPy cannot compute the products, or None. Its cuBLAS module is private, so it may change."""
    try:
        cublas = library()
    except ImportError as error:
        return f"needs cuBLAS: {str(error).partition(chr(10))[0]}"
    functions = ("gemmStridedBatchedEx", "getMathMode", "setMathMode")
    names = (*functions, "CUBLAS_COMPUTE_32F", "CUBLAS_COMPUTE_64F", "CUBLAS_GEMM_DEFAULT")
    lacks = [name for name in names if not hasattr(cublas, name)]
    return f"needs cupy_backends.cuda.libs.cublas.{lacks[0]}, which this CuPy lacks" if lacks else None


def library() -> Any:
    from cupy_backends.cuda.libs import cublas

    return cublas


def _cublas() -> tuple[Any, int]:
    """Return the library and the handle of this thread and device. The library's functions use CuPy's current stream."""
    from cupy.cuda import device

    return library(), device.get_cublas_handle()


def _readable(x: Any) -> Any:
    """Return x, or a copy if cuBLAS cannot read it."""
    steps = elements(x)
    return x if min(steps, default=0) >= 0 and operand(x.shape, steps) else x.copy(order="C")


def _as_stack(x: Any) -> Any:
    """Return a copy with the matrices one after another, each in its order of axes, so that the stack has one step."""
    if _operand(x).transposed:
        return x.swapaxes(-1, -2).copy(order="C").swapaxes(-1, -2)
    return x.copy(order="C")


def _is_stack(x: Any) -> bool:
    """Return whether the step from each matrix to the next is the same."""
    axes = [(size, step) for size, step in zip(x.shape[:-2], elements(x)[:-2], strict=True) if size != 1]
    return all(outer == size * inner for (_, outer), (size, inner) in pairwise(axes))


def _calls(a: Any, b: Any, out: Any) -> GemmCalls:
    steps: Any = tuple(zip(*_steps(a, b, out), strict=True))
    return gemm_calls(out.shape[:-2], _operand(a), _operand(b), _operand(out), steps)


def _operand(x: Any) -> Operand:
    layout = operand(x.shape, elements(x))
    if layout is None:
        raise AssertionError(f"cuBLAS cannot read {x.shape} with strides {x.strides}")
    return layout


def elements(x: Any) -> tuple[int, ...]:
    """Return the strides in elements; 0 along an axis of size 1, so that it broadcasts."""
    return tuple(0 if size == 1 else step // x.dtype.itemsize for size, step in zip(x.shape, x.strides, strict=True))


def with_strides(x: Any, ndim: int) -> tuple[Any, ...]:
    """Return an array and its strides in elements; without an array, None and zeros."""
    import numpy

    return x, *map(numpy.int64, (0,) * ndim if x is None else elements(x))


def _steps(a: Any, b: Any, out: Any) -> Iterator[tuple[int, ...]]:
    """Yield the strides of the leading axes for each array; an axis that an array lacks broadcasts."""
    for x in (a, b, out):
        lead = elements(x)[:-2]
        yield (0,) * (out.ndim - 2 - len(lead)) + lead
