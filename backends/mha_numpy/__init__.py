"""NumPy, as a plugin like anyone's. NumPy 2 is a conforming array-API namespace itself."""

from mha_core.plugin import Backend, Kernel, hookimpl


def _namespace():
    import numpy

    return numpy


def _versions():
    return {"numpy": _namespace().__version__}


def _parallel(function, items):
    from .threads import parallel

    return parallel(function, items)


def _gelu_supports(call):
    from .gelu import supports

    return supports(call)


@hookimpl
def mha_backends():
    yield Backend(
        name="numpy",
        api=1,
        types=("numpy:ndarray",),
        namespace=_namespace,
        parallel=_parallel,
        devices=lambda: ["cpu"],
        versions=_versions,
        install="pip install numpy",
    )


@hookimpl
def mha_kernels():
    yield Kernel(backend="numpy", op="gelu", name="tiles", api=1, load="mha_numpy.gelu:gelu", supports=_gelu_supports)
