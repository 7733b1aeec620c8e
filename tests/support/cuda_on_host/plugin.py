"""The kernels of mha_cupy as kernels of the NumPy backend: CUDA by the host's compiler.

Products are NumPy's. This tests the sources and the Python that launches them, but not CuPy, cuBLAS or a device.
"""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np

import mha_cupy
import mha_cupy.attention.flash
import mha_cupy.launch
import mha_cupy.products
from cuda_on_host import run
from cuda_on_host.blas import HostBlas
from mha_core.plugin import hookimpl
from mha_cupy import activations, columns, layers, linear_vjp, norms, norms_vjp, rotary, updates

MULTIPROCESSORS = 4  # so few that small problems occur both with and without splits
PIECES = (activations, columns, linear_vjp, norms, norms_vjp, rotary, updates)


def matmul(x, y):
    """Multiply matrices as cuBLAS does: sums are float32, or float64 for float64."""
    wide = np.float64 if x.dtype == np.float64 else np.float32
    return (x.astype(wide) @ y.astype(wide)).astype(x.dtype)


def empty(shape, dtype):
    """Return an array of NaN: an element that a kernel does not write shows."""
    return np.full(shape, np.nan, dtype=dtype)


HOST = SimpleNamespace(**{**vars(np), "empty": empty})
"""NumPy in place of CuPy."""


def stand_in(put):
    """Replace the device by the host, with ``put(module, name, value)``."""
    blas = HostBlas()
    for module in (mha_cupy.launch, *PIECES):
        put(module, "run", run)
    for module in (layers, *PIECES):
        put(module, "cupy", HOST)
    put(layers, "matmul", matmul)
    put(mha_cupy.products, "_cublas", lambda: (blas, 0))
    put(mha_cupy.products, "missing", lambda: None)
    put(mha_cupy.attention.flash, "capability", lambda: 90)
    put(mha_cupy.attention.flash, "multiprocessors", lambda: MULTIPROCESSORS)


@hookimpl
def mha_kernels():
    """Declare exactly the features that mha_cupy declares."""
    for kernel in mha_cupy.mha_kernels():
        yield replace(kernel, backend="numpy", name=f"{kernel.name}_on_host", opt_in=True)
