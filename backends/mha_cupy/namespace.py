"""CuPy as an array-API namespace: array-api-compat's, with support for ``device=`` and bfloat16.

Importing it needs no GPU.
"""

from typing import Any

import cupy
from array_api_compat.cupy import *  # noqa: F403
from ml_dtypes import bfloat16  # noqa: F401

from .bfloat16 import argsort, finfo, isdtype, matmul, result_type, round, where  # noqa: F401
from .devices import CREATION, from_dlpack  # noqa: F401

globals().update(CREATION)


def clip(x: Any, /, min: Any = None, max: Any = None) -> Any:
    """``clip`` of the standard. array-api-compat's waits for the device, to count the elements of a boolean index."""
    y = x if min is None else cupy.maximum(x, min)
    y = y if max is None else cupy.minimum(y, max)
    return x.copy() if y is x else y.astype(x.dtype, copy=False)
