"""Functions of the namespace that support bfloat16.

CuPy 14 computes with ml_dtypes' bfloat16, but supports it only in part. This module has the array-API standard's functions on
dtypes, and the functions for which CuPy returns another dtype or fails. Arithmetic with a Python float is not covered: CuPy
returns float32.
"""

from typing import Any

import array_api_compat.cupy as compat
import cupy
import ml_dtypes
import numpy
from ml_dtypes import bfloat16


def _is_bfloat16(dtype: Any) -> bool:
    return bool(dtype == bfloat16)


def isdtype(dtype: Any, kind: Any) -> bool:
    """``isdtype`` of the standard; bfloat16 has the kinds of float32. CuPy uses NumPy's function, which raises for bfloat16."""
    kinds = kind if isinstance(kind, tuple) else (kind,)
    if not _is_bfloat16(dtype):
        return bool(cupy.isdtype(dtype, tuple(k for k in kinds if not _is_bfloat16(k))))
    names = tuple(k for k in kinds if isinstance(k, str))
    return any(map(_is_bfloat16, kinds)) or bool(cupy.isdtype(cupy.float32, names))


def finfo(type: Any, /) -> Any:
    """``finfo`` of the standard, for a dtype or an array."""
    dtype = type.dtype if isinstance(type, cupy.ndarray) else type
    return ml_dtypes.finfo(dtype) if _is_bfloat16(dtype) else compat.finfo(dtype)


def result_type(*arrays_and_dtypes: Any) -> Any:
    """``result_type`` of the standard: a Python number does not change a dtype. NumPy returns float64 for bfloat16 and 1.0."""
    dtypes = [x.dtype if isinstance(x, cupy.ndarray) else x for x in arrays_and_dtypes]
    if any(map(_is_bfloat16, dtypes)):
        dtypes = [x for x in dtypes if not isinstance(x, bool | int | float)]
    return cupy.result_type(*dtypes)


def where(condition: Any, x1: Any, x2: Any, /) -> Any:
    """``where`` of the standard. CuPy's does not support bfloat16 and returns float32; this one selects the 16 bits."""
    arrays = [x.dtype for x in (x1, x2) if isinstance(x, cupy.ndarray)]
    if not arrays or not all(map(_is_bfloat16, arrays)):
        return cupy.where(condition, x1, x2)
    return cupy.where(condition, _bits(x1), _bits(x2)).view(bfloat16)


def argsort(x: Any, /, **options: Any) -> Any:
    """``argsort`` of the standard. CuPy's does not support bfloat16; float32 has the same order."""
    return compat.argsort(_widened(x), **options)


def round(x: Any, /) -> Any:
    """``round`` of the standard. CuPy's returns float32 for bfloat16."""
    return compat.round(_widened(x)).astype(x.dtype, copy=False)


def _widened(x: Any) -> Any:
    return x.astype(cupy.float32) if _is_bfloat16(x.dtype) else x


def _bits(x: Any) -> Any:
    if isinstance(x, cupy.ndarray):
        return x.view(cupy.uint16)
    return numpy.asarray(x, dtype=bfloat16).view(numpy.uint16)[()]  # [()]: a scalar, which CuPy takes as an argument


def matmul(x1: Any, x2: Any, /) -> Any:
    """``matmul`` of the standard. CuPy multiplies bfloat16 matrices, accumulating in float32, but fails on stacks of them."""
    if max(x1.ndim, x2.ndim) <= 2 or not (_is_bfloat16(x1.dtype) and _is_bfloat16(x2.dtype)):
        return cupy.matmul(x1, x2)  # https://github.com/cupy/cupy/pull/10317; float16 is accumulated in float32 anyway
    return cupy.matmul(x1.astype(cupy.float32), x2.astype(cupy.float32)).astype(bfloat16)
