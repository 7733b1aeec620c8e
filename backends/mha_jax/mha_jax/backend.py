"""JAX for mha-core: the algebra needs only jax.numpy, and works under jit, grad and vmap."""

import sys
from importlib import import_module

from mha_core.plugin import Backend, hookimpl


def _is_jax(x):  # tracers too; a program with a JAX array has imported jax
    return isinstance(x, getattr(sys.modules.get("jax"), "Array", ()))


@hookimpl
def mha_backends():
    yield Backend("jax", 1, (_is_jax,), lambda: import_module("jax.numpy"), install="pip install jax")
