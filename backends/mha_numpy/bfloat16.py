"""bfloat16 as one more dtype of NumPy's namespace, where ml_dtypes brings it.

NumPy computes with ml_dtypes' bfloat16, but knows it in part only: here stands what the standard asks of a dtype, and what
NumPy would answer in another dtype. Arithmetic with a Python float, and ``@``, are left: NumPy answers them in float32.
ml_dtypes is imported only by who asks for the dtype by its name; without it no array can be of it.
"""

from __future__ import annotations

import sys
import types
from typing import Any

import numpy


def namespace() -> types.ModuleType:
    """NumPy itself, by its own name, with these functions in place of its own."""
    xp = types.ModuleType("numpy", numpy.__doc__)
    xp.__dict__.update(vars(numpy))
    xp.__dict__.update(isdtype=isdtype, finfo=finfo, where=where, matmul=matmul, __getattr__=_further)
    return xp


def _further(name: str) -> Any:
    """What is no attribute yet: the dtype, or one of the modules that NumPy loads on need."""
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
    """As the standard has it; bfloat16 is of the kinds of float32. NumPy's function refuses it."""
    kinds = kind if isinstance(kind, tuple) else (kind,)
    if not _is_bfloat16(dtype):
        return numpy.isdtype(dtype, tuple(k for k in kinds if not _is_bfloat16(k)))
    names = tuple(k for k in kinds if isinstance(k, str))
    return any(map(_is_bfloat16, kinds)) or numpy.isdtype(numpy.float32, names)


def finfo(type: Any, /) -> Any:
    """As the standard has it, of a dtype or an array."""
    dtype = type.dtype if isinstance(type, numpy.ndarray) else type
    return sys.modules["ml_dtypes"].finfo(dtype) if _is_bfloat16(dtype) else numpy.finfo(dtype)


def where(condition: Any, x1: Any, x2: Any, /) -> Any:
    """As the standard has it: a Python float changes no dtype. NumPy makes float64 of bfloat16 and 1.0."""
    if sys.modules.get("ml_dtypes") is not None:
        if isinstance(x1, float) and _is_bfloat16(x2.dtype):
            x1 = x2.dtype.type(x1)
        elif isinstance(x2, float) and _is_bfloat16(x1.dtype):
            x2 = x1.dtype.type(x2)
    return numpy.where(condition, x1, x2)


def matmul(x1: Any, x2: Any, /) -> Any:
    """As the standard has it. NumPy multiplies bfloat16 in float32, and answers in it."""
    y = numpy.matmul(x1, x2)
    return y.astype(x1.dtype) if y.dtype == numpy.float32 and _is_bfloat16(x1.dtype) and x1.dtype == x2.dtype else y
