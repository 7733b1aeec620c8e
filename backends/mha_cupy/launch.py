"""CUDA sources of this package: compiled by NVRTC on first need for each device, and launched on CuPy's current stream.

What is to be launched is a plain record, which needs no GPU to be made.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

_FOLDER = Path(__file__).parent / "cuda"
_SHARED = 48 << 10  # bytes that a block is given without asking
_NAMES = {"float16": "float16", "bfloat16": "bfloat16", "float32": "float", "float64": "double"}


@dataclass(frozen=True, eq=False)
class Launch:
    """A kernel of a source and what it is given.

    source: a file of the folder ``cuda``. defines: ``NAME=value`` for the compiler. grid, block: how many blocks, and threads
    of each. args: arrays, for which the kernel receives a pointer; None, a null pointer; NumPy scalars, by value. shared: bytes
    that the blocks are given beside what the source declares.
    """

    source: str
    kernel: str
    defines: tuple[str, ...]
    grid: int
    block: int
    args: Sequence[Any]
    shared: int = 0


def run(launch: Launch) -> None:
    """On CuPy's current device and stream; it waits for nothing."""
    import numpy

    args = [numpy.uint64(0) if arg is None else arg for arg in launch.args]
    kernel = _kernel(launch.source, launch.kernel, launch.defines)
    if launch.shared > _SHARED:
        kernel.max_dynamic_shared_size_bytes = launch.shared
    kernel((launch.grid,), (launch.block,), tuple(args), shared_mem=launch.shared)


def address(x: Any) -> int:
    """Of the first number; on the host too, where tests run the sources."""
    import numpy

    found: int = x.ctypes.data if isinstance(x, numpy.ndarray) else x.data.ptr
    return found


@cache  # NumPy takes 4 us to write a dtype
def c_name(dtype: Any) -> str:
    """What the sources call a floating dtype."""
    return _NAMES[str(dtype)]


@cache
def text(source: str) -> str:
    """A source with what it includes in its place: NVRTC then needs no folder to look in."""
    return re.sub(r'^#include "(.+)"$', lambda match: text(match[1]), (_FOLDER / source).read_text("utf-8"), flags=re.MULTILINE)


@cache
def _kernel(source: str, kernel: str, defines: tuple[str, ...]) -> Any:
    import cupy

    return cupy.RawKernel(text(source), kernel, ("--std=c++17", *(f"-D{define}" for define in defines)), backend="nvrtc")
