"""MLX for mha-core: its arrays are computed when they are read, and belong to the thread that made them."""

from importlib import import_module

from mha_core.plugin import Backend, hookimpl


def _from_numpy(array, device):
    import mlx.core as mx
    import numpy

    dtype = mx.bool_ if array.dtype == bool else getattr(mx, array.dtype.name)
    return mx.array(numpy.ascontiguousarray(array) if array.ndim else array, dtype)


def _to_numpy(array):
    import ml_dtypes
    import mlx.core as mx
    import numpy

    half = array.dtype == mx.bfloat16  # which NumPy lacks; each number of it is one of float32
    return numpy.array(array.astype(mx.float32)).astype(ml_dtypes.bfloat16) if half else numpy.array(array)


def _value_and_grad(function, arrays):
    import mlx.core as mx

    (value, others), gradients = mx.value_and_grad(function)(arrays)
    return value, others, gradients


@hookimpl
def mha_backends():
    yield Backend(
        name="mlx",
        api=1,
        types=("mlx.core:array",),
        namespace=lambda: import_module("mha_mlx.namespace"),
        from_numpy=_from_numpy,
        to_numpy=_to_numpy,
        value_and_grad=_value_and_grad,
        versions=lambda: {"mlx": import_module("mlx.core").__version__},
        install="pip install 'mlx[cpu]'",
        advice={"cast": "{x}.astype(mlx.core.{dtype})"},
        thread_bound=True,
    )
