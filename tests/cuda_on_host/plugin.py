"""mha_cupy's kernels of attention as kernels of NumPy's backend: its CUDA by the host's compiler, its products by host BLAS.

It judges the sources and what leads to them. What CuPy, cuBLAS and a device do with them it does not.
"""

from dataclasses import replace

import mha_cupy
import mha_cupy.flash
import mha_cupy.launch
import mha_cupy.products
from cuda_on_host import run
from cuda_on_host.blas import HostBlas
from mha_core.plugin import hookimpl

MULTIPROCESSORS = 4  # few: so that small problems are computed at once and in parts, both


def stand_in(put):
    """Put the host in the place of the device, by ``put(module, name, value)``."""
    blas = HostBlas()
    put(mha_cupy.launch, "run", run)
    put(mha_cupy.products, "_cublas", lambda: (blas, 0))
    put(mha_cupy.products, "missing", lambda: None)
    put(mha_cupy.flash, "capability", lambda: 90)
    put(mha_cupy.flash, "multiprocessors", lambda: MULTIPROCESSORS)


@hookimpl
def mha_kernels():
    """With the features that mha_cupy declares, no others."""
    for kernel in mha_cupy.mha_kernels():
        if kernel.op == "attention":
            yield replace(kernel, backend="numpy", name=f"{kernel.name}_on_host", opt_in=True)
