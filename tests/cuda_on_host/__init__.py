"""Kernels of mha_cupy, run on the host: a C++ compiler reads the same text, with a header that stands in for CUDA."""

import ctypes
import shutil
import subprocess
from collections import deque
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from threading import Lock

import numpy as np

SOURCES = Path(__file__).parent.parent.parent / "backends" / "mha_cupy" / "cuda"
launched = deque(maxlen=200)
"""What ran last, for tests to look at."""
_TURN = Lock()  # a device takes launches of all threads; here they take turns
_WRONG = {
    1: "the threads of a block did not meet in the same places",
    2: "a block wrote beyond the shared memory that it was given",
    3: "a copy of 16 bytes began between two places of 16",
}
COMPILER = shutil.which("g++") or shutil.which("clang++")


@cache
def compiled(source, kernel, defines):
    """The kernel's ``launch(grid, block, shared, flushes, args)``; ``defines`` are what the device's compiler is given."""
    folder = Path(mkdtemp(prefix="cuda_on_host"))
    code = f"""
        #include "cuda_on_host.h"
        #include "{source}"
        extern "C" int launch(unsigned int grid, unsigned int block, unsigned int shared, bool flushes, void** args) {{
            return host::launch({kernel}, grid, block, shared, flushes, args);
        }}
    """
    (folder / "kernel.cpp").write_text(code)
    includes = [f"-I{Path(__file__).parent}", f"-I{SOURCES}"]
    command = [COMPILER, "-std=c++17", "-O1", "-shared", "-fPIC", "-ffp-contract=off", "-Wno-unknown-pragmas", *includes]
    done = subprocess.run(
        [*command, *(f"-D{define}" for define in defines), "-o", folder / "kernel.so", folder / "kernel.cpp"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    library = ctypes.CDLL(str(folder / "kernel.so"))
    shutil.rmtree(folder)
    return library.launch


def run(launch):
    """A ``mha_cupy.launch.Launch`` whose arrays are NumPy's."""
    launched.append(launch)
    cells = [_cell(x) for x in launch.args]
    places = [ctypes.addressof(x) if isinstance(x, ctypes.c_void_p) else x.ctypes.data for x in cells]
    function = compiled(launch.source, launch.kernel, launch.defines)
    flushes = not any(define.endswith("=double") for define in launch.defines)  # CuPy compiles with -ftz=true, which is float's
    with _TURN:
        status = function(launch.grid, launch.block, launch.shared, flushes, (ctypes.c_void_p * len(places))(*places))
    assert status == 0, _WRONG[status]


def _cell(x):
    """What the kernel's parameter is read from: a pointer, or a number."""
    if x is None or (isinstance(x, np.ndarray) and x.ndim):
        return ctypes.c_void_p(None if x is None else x.ctypes.data)
    assert isinstance(x, np.generic), f"{x!r} has no width of its own: a device would read it by CuPy's"
    return np.asarray(x)
