"""NumPy's namespace with the dtype bfloat16, if ml_dtypes is installed.

NumPy computes with ml_dtypes' bfloat16, but some of its functions raise for the dtype or return another one; this module
replaces them. Operators cannot be replaced: arithmetic with a Python float, and ``@``, return float32. ml_dtypes is imported on
the first access to ``xp.bfloat16``; unless it is imported, no array can have the dtype.
"""

from __future__ import annotations

import sys
import types
from typing import Any

import numpy


def namespace() -> types.ModuleType:
    """Return a module named numpy: all of NumPy, with some functions replaced by those below."""
    xp = types.ModuleType("numpy", numpy.__doc__)
    xp.__dict__.update(vars(numpy))
    xp.__dict__.update(isdtype=isdtype, finfo=finfo, where=where, matmul=matmul, __getattr__=_lazy_attribute)
    return xp


def _lazy_attribute(name: str) -> Any:
    """Return bfloat16, or a module that NumPy imports on first use."""
    if name != "bfloat16":
        return getattr(numpy, name)
    try:
        import ml_dtypes
    except ImportError as missing:
        raise ModuleNotFoundError("NumPy has no bfloat16 by itself; install it with: pip install ml_dtypes") from missing
    return ml_dtypes.bfloat16


def _is_bfloat16(dtype: Any) -> bool:
    ml_dtypes = sys.modules.get("ml_dtypes")
    return ml_dtypes is not None and bool(dtype == ml_dtypes.bfloat16)


def isdtype(dtype: Any, kind: Any) -> bool:
    """``isdtype`` of the array API; bfloat16 belongs to the same kinds as float32. NumPy's function raises for it."""
    kinds = kind if isinstance(kind, tuple) else (kind,)
    if not _is_bfloat16(dtype):
        return numpy.isdtype(dtype, tuple(k for k in kinds if not _is_bfloat16(k)))
    names = tuple(k for k in kinds if isinstance(k, str))
    return any(map(_is_bfloat16, kinds)) or numpy.isdtype(numpy.float32, names)


def finfo(type: Any, /) -> Any:
    """``finfo`` of the array API, for a dtype or an array. NumPy's function raises for bfloat16."""
    dtype = type.dtype if isinstance(type, numpy.ndarray) else type
    return sys.modules["ml_dtypes"].finfo(dtype) if _is_bfloat16(dtype) else numpy.finfo(dtype)


def where(condition: Any, x1: Any, x2: Any, /) -> Any:
    """``where`` of the array API: a Python float changes no dtype. NumPy returns float64 for bfloat16 and 1.0."""
    if sys.modules.get("ml_dtypes") is not None:
        if type(x1) is float and _is_bfloat16(x2.dtype):
            x1 = x2.dtype.type(x1)
        elif type(x2) is float and _is_bfloat16(x1.dtype):
            x2 = x1.dtype.type(x2)
    return numpy.where(condition, x1, x2)


def matmul(x1: Any, x2: Any, /) -> Any:
    """``matmul`` of the array API. NumPy returns float32 for two bfloat16 arrays."""
    y = numpy.matmul(x1, x2)
    return y.astype(x1.dtype) if y.dtype == numpy.float32 and _is_bfloat16(x1.dtype) and x1.dtype == x2.dtype else y
