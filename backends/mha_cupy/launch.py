"""Launches of this package's CUDA kernels: NVRTC compiles a source on first use on each device.

A launch is a plain record; making one needs no GPU.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

_FOLDER = Path(__file__).parent / "cuda"
_DEFAULT_SHARED = 48 << 10  # bytes of shared memory that a thread block may use without opting in
_C_NAMES = {"float16": "float16", "bfloat16": "bfloat16", "float32": "float", "float64": "double"}


@dataclass(frozen=True, eq=False)
class Launch:
    """A CUDA kernel, its launch configuration and its arguments."""

    source: str
    """A file of the folder ``cuda``."""
    kernel: str
    """The name of the kernel in that file."""
    defines: tuple[str, ...]
    """``NAME=value`` for the compiler."""
    grid: int
    """Number of thread blocks."""
    block: int
    """Threads of each thread block."""
    args: Sequence[Any]
    """Arrays are passed as pointers, None as a null pointer, and NumPy scalars by value."""
    shared: int = 0
    """Bytes of dynamic shared memory for each thread block."""

    def with_arrays(self, *arrays: Any) -> Launch:
        """Return the launch with these arguments before the others."""
        return replace(self, args=(*arrays, *self.args))


def run(launch: Launch) -> None:
    """Launch on CuPy's current device and stream, without waiting for the result."""
    import numpy

    args = [numpy.uint64(0) if arg is None else arg for arg in launch.args]
    kernel = _compiled(launch.source, launch.kernel, launch.defines)
    if launch.shared > _DEFAULT_SHARED:
        kernel.max_dynamic_shared_size_bytes = launch.shared
    kernel((launch.grid,), (launch.block,), tuple(args), shared_mem=launch.shared)


def address(x: Any) -> int:
    """Return the address of the first element. NumPy arrays are accepted too: tests run the sources on the host."""
    import numpy

    pointer: int = x.ctypes.data if isinstance(x, numpy.ndarray) else x.data.ptr
    return pointer


@cache  # str(dtype) takes NumPy 4 us
def c_name(dtype: Any) -> str:
    """Return the name of a floating dtype in the sources."""
    return _C_NAMES[str(dtype)]


@cache
def text(source: str) -> str:
    """Return a source with the files that it includes in place of the includes, so that NVRTC needs no include path."""
    return re.sub(r'^#include "(.+)"$', lambda match: text(match[1]), (_FOLDER / source).read_text("utf-8"), flags=re.MULTILINE)


@cache
def _compiled(source: str, kernel: str, defines: tuple[str, ...]) -> Any:
    import cupy

    return cupy.RawKernel(text(source), kernel, ("--std=c++17", *(f"-D{define}" for define in defines)), backend="nvrtc")
