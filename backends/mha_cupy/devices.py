"""The functions of the namespace that create arrays: CuPy creates on its current device, so ``device=`` makes one current."""

from collections.abc import Callable
from functools import wraps
from typing import Any

import array_api_compat.cupy as compat
import cupy
import numpy

HOST = 1  # kDLCPU, https://dmlc.github.io/dlpack/latest/c_api.html


def _on_device(function: Callable[..., Any]) -> Callable[..., Any]:
    """With ``device=`` obeyed: array-api-compat takes it and leaves it, since CuPy creates on its current device only."""

    @wraps(function)
    def create(*args: Any, device: Any = None, **options: Any) -> Any:
        if device is None:
            return function(*args, **options)
        with cupy.cuda.Device(device):
            return function(*args, **options)

    return create


def _like(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same for functions of an array, whose own device is the default."""

    @wraps(function)
    def create(x: Any, /, *args: Any, device: Any = None, **options: Any) -> Any:
        with cupy.cuda.Device(x.device if device is None else device):
            return function(x, *args, **options)

    return create


arange = _on_device(compat.arange)
empty = _on_device(compat.empty)
eye = _on_device(compat.eye)
full = _on_device(compat.full)
linspace = _on_device(compat.linspace)
ones = _on_device(compat.ones)
zeros = _on_device(compat.zeros)
empty_like = _like(compat.empty_like)
full_like = _like(compat.full_like)
ones_like = _like(compat.ones_like)
zeros_like = _like(compat.zeros_like)


def from_dlpack(x: Any, /, *, device: Any = None, copy: bool | None = None) -> Any:
    """An array of any library, from the host too, which CuPy itself refuses; shared unless it must be copied."""
    if x.__dlpack_device__()[0] == HOST:
        if copy is False:
            raise BufferError("x is on the host, and must be copied to be on a CUDA device")
        return _on_device(cupy.array)(numpy.from_dlpack(x), device=device)
    y = cupy.from_dlpack(x, copy=copy)
    if device is None or y.device == cupy.cuda.Device(device):
        return y
    if copy is False:
        raise BufferError(f"x is on {y.device}, and must be copied to be on {cupy.cuda.Device(device)}")
    return compat.asarray(y, device=device)
