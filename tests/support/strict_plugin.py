"""array_api_strict as a backend without kernels, so that the algebra itself is tested."""

from mha_core.plugin import Backend, hookimpl


def _strict():
    import array_api_strict

    return array_api_strict


def _strict_from_numpy(array, device):
    return _strict().asarray(array.copy())


def _strict_to_numpy(array):
    import numpy

    return numpy.array(array._array)


@hookimpl
def mha_backends():
    yield Backend(
        name="array_api_strict",
        api=1,
        types=("array_api_strict._array_object:Array",),
        namespace=_strict,
        from_numpy=_strict_from_numpy,
        to_numpy=_strict_to_numpy,
    )
