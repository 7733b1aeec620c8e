"""mha_cupy's kernel of attention as a kernel of NumPy's backend: its CUDA by the host's compiler, its products by host BLAS.

It judges the sources and what leads to them. What CuPy, cuBLAS and a device do with them it does not.
"""

from dataclasses import replace

import mha_cupy
import mha_cupy.launch
import mha_cupy.products
from cuda_on_host import run
from cuda_on_host.blas import HostBlas
from mha_core.plugin import hookimpl


def stand_in(put):
    """Put the host in the place of the device, by ``put(module, name, value)``."""
    blas = HostBlas()
    put(mha_cupy.launch, "run", run)
    put(mha_cupy.products, "_cublas", lambda: (blas, 0))
    put(mha_cupy.products, "pointer", lambda x: x.ctypes.data)
    put(mha_cupy.products, "missing", lambda: None)


@hookimpl
def mha_kernels():
    """With the features that mha_cupy declares, no others."""
    (declared,) = (kernel for kernel in mha_cupy.mha_kernels() if kernel.op == "attention")
    yield replace(declared, backend="numpy", name="cuda_on_host", opt_in=True)
