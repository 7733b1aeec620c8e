"""Run the CUDA kernels of mha_cupy on the host: a C++ compiler compiles the same sources, with a header in place of CUDA."""

import ctypes
import shutil
import subprocess
from collections import deque
from functools import cache
from pathlib import Path
from threading import Lock

import cuda_builds
import numpy as np
from project import ROOT

HERE = Path(__file__).parent
SOURCES = ROOT / "backends" / "mha_cupy" / "cuda"
COMPILER = shutil.which("g++") or shutil.which("clang++")
OPTIONS = ("-std=c++17", "-O1", "-shared", "-fPIC", "-ffp-contract=off", "-Wno-unknown-pragmas")
launched = deque(maxlen=200)
"""The last launches, for tests to inspect."""
_LOCK = Lock()  # the header has one state for all launches, so threads take turns
_ERRORS = {
    1: "the threads of a block did not reach the same synchronization points",
    2: "a block wrote beyond its shared memory",
    3: "a copy of 16 bytes was not aligned to 16 bytes",
}


@cache
def compiled(source, kernel, defines):
    """Return a kernel's C function ``launch(grid, block, shared, flushes, args)``. defines: ``NAME=value``, as in Launch."""
    return ctypes.CDLL(str(build(source, kernel, defines))).launch


def build(source, kernel, defines):
    """Return the path of the shared library with ``launch``; compile it if build/cuda does not have it."""
    code = f"""
        #include "cuda_on_host.h"
        #include "{source}"
        extern "C" int launch(unsigned int grid, unsigned int block, unsigned int shared, bool flushes, void** args) {{
            return host::launch({kernel}, grid, block, shared, flushes, args);
        }}
    """
    whole = cuda_builds.with_includes(code, [HERE, SOURCES])
    options = [*OPTIONS, *(f"-D{define}" for define in defines)]

    def compile_into(path):
        done = subprocess.run(
            [COMPILER, *options, "-x", "c++", "-o", path, "-"], input=whole, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr

    return cuda_builds.kept(".so", [whole, *options, compiler_version()], compile_into)


@cache
def compiler_version():
    """Return version, target and configuration, as the compiler prints them."""
    return subprocess.run([COMPILER, "-v"], capture_output=True, text=True, check=True).stderr


def run(launch):
    """Run a ``mha_cupy.launch.Launch`` whose arrays are NumPy arrays."""
    launched.append(launch)
    cells = [_cell(x) for x in launch.args]
    places = [ctypes.addressof(x) if isinstance(x, ctypes.c_void_p) else x.ctypes.data for x in cells]
    function = compiled(launch.source, launch.kernel, launch.defines)
    flushes = not any(
        define.endswith("=double") for define in launch.defines
    )  # CuPy compiles with -ftz=true, which concerns float only
    with _LOCK:
        status = function(launch.grid, launch.block, launch.shared, flushes, (ctypes.c_void_p * len(places))(*places))
    assert status == 0, _ERRORS[status]


def _cell(x):
    """Return the memory of the kernel's argument: a pointer or a number."""
    if x is None or (isinstance(x, np.ndarray) and x.ndim):
        return ctypes.c_void_p(None if x is None else x.ctypes.data)
    assert isinstance(x, np.generic), f"{x!r} is a Python number; expected a NumPy scalar, which has a fixed width"
    return np.asarray(x)
