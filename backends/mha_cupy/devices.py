"""The namespace's creation functions, with support for ``device=``.

CuPy creates arrays on its current device, so these functions make the given device current.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any

import array_api_compat.cupy as compat
import cupy
import numpy

HOST = 1  # kDLCPU, https://dmlc.github.io/dlpack/latest/c_api.html


def _on_device(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function with ``device=`` respected; array-api-compat accepts it, but creates on the current device."""

    @wraps(function)
    def create(*args: Any, device: Any = None, **options: Any) -> Any:
        if device is None:
            return function(*args, **options)
        with cupy.cuda.Device(device):
            return function(*args, **options)

    return create


def _like(function: Callable[..., Any]) -> Callable[..., Any]:
    """Do the same for a function of an array, whose device is the default."""

    @wraps(function)
    def create(x: Any, /, *args: Any, device: Any = None, **options: Any) -> Any:
        with cupy.cuda.Device(x.device if device is None else device):
            return function(x, *args, **options)

    return create


_ON_DEVICE, _LIKE = ("arange", "empty", "eye", "full", "linspace", "ones", "zeros"), ("empty", "full", "ones", "zeros")
CREATION = {name: _on_device(getattr(compat, name)) for name in _ON_DEVICE}
CREATION |= {f"{name}_like": _like(getattr(compat, f"{name}_like")) for name in _LIKE}
"""The creation functions by name."""


def from_dlpack(x: Any, /, *, device: Any = None, copy: bool | None = None) -> Any:
    """``from_dlpack`` of the standard, also for arrays on the host, which CuPy refuses. Memory is shared where possible."""
    if x.__dlpack_device__()[0] == HOST:
        if copy is False:
            raise BufferError("x is on the host; expected an array on a CUDA device for copy=False: leave copy out to copy it")
        return _on_device(cupy.array)(numpy.from_dlpack(x), device=device)
    y = cupy.from_dlpack(x, copy=copy)
    if device is None or y.device == cupy.cuda.Device(device):
        return y
    if copy is False:
        raise BufferError(f"x is on {y.device}; expected {cupy.cuda.Device(device)} for copy=False: leave copy out to copy it")
    return compat.asarray(y, device=device)
