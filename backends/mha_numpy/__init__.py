"""NumPy, as a plugin like anyone's. NumPy 2 is a conforming array-API namespace itself."""

from mha_core.plugin import Backend, Kernel, hookimpl


def _namespace():
    import numpy

    return numpy


def _versions():
    return {"numpy": _namespace().__version__}


@hookimpl
def mha_backends():
    yield Backend(
        name="numpy",
        api=1,
        types=("numpy:ndarray",),
        namespace=_namespace,
        devices=lambda: ["cpu"],
        versions=_versions,
        install="pip install numpy",
    )
