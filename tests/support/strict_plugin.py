"""array_api_strict as a backend without kernels, so that the algebra itself is tested."""

import importlib

from mha_core.plugin import Backend, hookimpl


def _strict():
    return importlib.import_module("array_api_strict")


@hookimpl
def mha_backends():
    yield Backend(
        name="array_api_strict",
        api=1,
        types=("array_api_strict._array_object:Array",),
        namespace=_strict,
        from_numpy=lambda array, device: _strict().asarray(array.copy()),
        to_numpy=lambda array: array._array.copy(),
    )
