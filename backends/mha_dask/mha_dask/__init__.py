"""dask.array for mha-core: arrays in chunks, which are computed when they are asked for."""

from importlib import import_module

from mha_core.plugin import Backend, Kernel, hookimpl

FEATURES = frozenset(
    {
        *("causal", "window", "key_lengths", "packed", "array_mask", "mask"),
        *("bias", "alibi", "relative_bias", "bias_term", "softcap", "sink"),
        *("lse", "grouped_query", "value_dim", "broadcast", "weight_dropout"),
    }
)


def _from_numpy(array, device):
    import dask.array

    return dask.array.from_array(array, chunks=-1)


def _to_numpy(array):
    import numpy

    return numpy.asarray(array.compute())  # an array without axes is computed as a number


def _refuses(array):
    if any(size != size for size in array.shape):  # NaN
        return (
            f"has the shape {array.shape}, in which sizes are not known: "
            "compute them first, with its method compute_chunk_sizes()"
        )
    return None


def _versions():
    import dask
    import numpy

    return {"dask": dask.__version__, "numpy": numpy.__version__}


@hookimpl
def mha_backends():
    yield Backend(
        name="dask",
        api=1,
        types=("dask.array.core:Array",),
        namespace=lambda: import_module("mha_dask.namespace"),
        from_numpy=_from_numpy,
        to_numpy=_to_numpy,
        refuses=_refuses,
        versions=_versions,
        install="pip install 'dask[array]'",
    )


@hookimpl
def mha_kernels():
    yield Kernel("dask", "attention", "blocks", 1, "mha_dask.attention:attention", handles=FEATURES)
