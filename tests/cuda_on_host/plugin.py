"""The kernels of mha_cupy for attention, gradients and updates as kernels of the NumPy backend: CUDA by the host's compiler.

Products are NumPy's. This tests the sources and the Python that launches them, but not CuPy, cuBLAS or a device.
"""

from dataclasses import replace

import numpy as np

import mha_cupy
import mha_cupy.attention.flash
import mha_cupy.launch
import mha_cupy.products
from cuda_on_host import run
from cuda_on_host.blas import HostBlas
from mha_core.dispatch.contract import VJPS
from mha_core.plugin import hookimpl
from mha_cupy import activations, columns, linear_vjp, norms, norms_vjp, rotary, updates

MULTIPROCESSORS = 4  # so few that small problems occur both with and without splits
OPERATIONS = {"attention", "attention_vjp", *VJPS, "adamw"}
PIECES = (activations, columns, linear_vjp, norms, norms_vjp, rotary, updates)


def stand_in(put):
    """Replace the device by the host, with ``put(module, name, value)``."""
    blas = HostBlas()
    for module in (mha_cupy.launch, *PIECES):
        put(module, "run", run)
    for module in PIECES:
        put(module, "cupy", np)
    put(mha_cupy.products, "_cublas", lambda: (blas, 0))
    put(mha_cupy.products, "missing", lambda: None)
    put(mha_cupy.attention.flash, "capability", lambda: 90)
    put(mha_cupy.attention.flash, "multiprocessors", lambda: MULTIPROCESSORS)


@hookimpl
def mha_kernels():
    """Declare exactly the features that mha_cupy declares."""
    for kernel in mha_cupy.mha_kernels():
        if kernel.op in OPERATIONS:
            yield replace(kernel, backend="numpy", name=f"{kernel.name}_on_host", opt_in=True)
