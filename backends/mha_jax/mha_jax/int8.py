"""Linear maps of int8 weights, by the algebra. JAX would differentiate the rounding, whose gradient is 0: it is refused."""

from typing import Any

import jax
from jax import Array

import mha_core as mha


def linear_int8(x: Array, w: mha.Int8Weight, b: Array | None) -> Array:
    """x w + b. Raises TypeError where JAX differentiates it."""
    return _linear(x, w.values, w.scale, b)


@jax.custom_jvp
def _linear(x: Array, values: Array, scale: Array, b: Array | None) -> Array:
    with mha.use_kernel("linear_int8", "algebra"):
        y: Array = mha.linear(x, mha.Int8Weight(values, scale), b)
    return y


@_linear.defjvp
def _refused(primals: Any, tangents: Any) -> Any:
    raise TypeError("int8 weights are for inference, and have no gradients: train the layer that was quantized")
