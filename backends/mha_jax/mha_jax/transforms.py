"""JAX's transforms of functions, as conformance applies them to kernels; not forward mode, which JAX refuses for custom_vjp."""

import jax


def gradient(function, arrays, towards):
    """Return the gradients of the sum of results times ``towards``."""
    return jax.vjp(function, *arrays)[1](tuple(towards))


def vmap(function, arrays):
    """Return the results for each element along the first axis."""
    return jax.vmap(function)(*arrays)
