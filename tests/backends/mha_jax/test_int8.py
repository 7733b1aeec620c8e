"""Linear maps of int8 weights on JAX arrays: the numbers of the algebra, and no gradients of 0."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax_gradients import DTYPE

import mha_core as mha


def problem(rng, b):
    x, w = rng.normal(size=(3, 5, 70)).astype(DTYPE), rng.normal(size=(70, 9)).astype(DTYPE)
    return jnp.asarray(x), mha.quantize_weight(jnp.asarray(w)), jnp.asarray(rng.normal(size=9).astype(DTYPE)) if b else None


@pytest.mark.parametrize("b", [False, True])
def test_the_numbers_are_those_of_the_algebra_under_jit_and_vmap(rng, b):
    x, w, b = problem(rng, b)
    assert mha.explain(mha.linear, x, w, b).kernel == "inference"
    with mha.use_kernel("linear_int8", "algebra"):
        expected = mha.linear(x, w, b)
    np.testing.assert_array_equal(mha.linear(x, w, b), expected)
    for mapped in (jax.jit(lambda x: mha.linear(x, w, b)), jax.vmap(lambda x: mha.linear(x, w, b))):
        np.testing.assert_allclose(mapped(x), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("transformed", [jax.grad, lambda f: jax.jit(jax.grad(f)), lambda f: jax.grad(jax.jit(f)), jax.jacfwd])
def test_gradients_are_refused(rng, transformed):
    x, w, b = problem(rng, True)
    with pytest.raises(TypeError, match="int8 weights are for inference, and have no gradients"):
        transformed(lambda x: mha.linear(x, w, b).sum())(x)
    with pytest.raises(TypeError, match="int8 weights are for inference"):
        mha.value_and_grad(lambda x: mha.linear(x, w, b).sum())(x)
