"""mha_cupy's kernel of attention as a kernel of NumPy's backend: its CUDA by the host's compiler, its products by host BLAS.

It judges the sources and what leads to them. What CuPy, cuBLAS and a device do with them it does not.
"""

import mha_cupy.launch
import mha_cupy.products
from cuda_on_host import run
from cuda_on_host.blas import HostBlas
from mha_core.plugin import Kernel, hookimpl
from mha_cupy import attention

FEATURES = frozenset(
    {
        *("lse", "softcap", "sink", "grouped_query", "value_dim", "broadcast", "bias", "alibi", "relative_bias", "bias_term"),
        *("causal", "window", "key_lengths", "packed", "array_mask", "mask"),
    }
)


def stand_in(replace):
    """Put the host in the place of the device, by ``replace(module, name, value)``."""
    blas = HostBlas()
    replace(mha_cupy.launch, "run", run)
    replace(mha_cupy.products, "_cublas", lambda: (blas, 0))
    replace(mha_cupy.products, "pointer", lambda x: x.ctypes.data)
    replace(mha_cupy.products, "missing", lambda: None)


@hookimpl
def mha_kernels():
    yield Kernel(
        backend="numpy",
        op="attention",
        name="cuda_on_host",
        api=1,
        load="mha_cupy.attention:attention",
        handles=FEATURES,
        supports=attention.supports,
        opt_in=True,
    )
