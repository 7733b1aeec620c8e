"""Caches of a fixed capacity as arguments and results of jax.jit: a step is compiled once."""

import jax
import jax.numpy as jnp
import needs
import numpy as np
import pytest

import mha_core as mha
from mha_core.dispatch.backend import load

pytestmark = needs.installed("mha_jax", "jax")


def test_the_plugin_may_be_loaded_again():
    """A class can be a pytree once only, and a plugin that is registered anew is loaded anew."""
    record = load("jax").record
    assert record.namespace() is record.namespace()
    assert record.namespace().where is jnp.where


@pytest.mark.parametrize("dtype", [None, "int8"])
def test_a_step_is_compiled_once_and_a_position_too_many_gives_nan(rng, dtype):
    """An eager step goes on with a cache that compiled steps have filled, and the other way round."""
    encoder = mha.Encoder.init(d_model=16, num_heads=2, d_ff=24, num_layers=2, seed=0).to("jax")
    x, traced = jnp.asarray(rng.normal(size=(1, 10, 16)), dtype=jnp.float32), []

    def step(x, cache):
        return encoder(x, mask=mha.causal(), cache=cache)

    @jax.jit
    def run(x, cache):
        traced.append(x.shape)
        return step(x, cache), cache

    fixed, grows = mha.DecoderCache(capacity=10, dtype=dtype), mha.DecoderCache(dtype=dtype)
    for start, stop in ((0, 4), (4, 5), (5, 6), (6, 7), (7, 8)):
        out, fixed = run(x[:, start:stop], fixed)
        np.testing.assert_allclose(out, step(x[:, start:stop], grows), rtol=0, atol=1e-5)
    assert traced == [(1, 4, 16), (1, 1, 16)] and int(fixed.length) == 8
    np.testing.assert_allclose(step(x[:, 8:9], fixed), step(x[:, 8:9], grows), rtol=0, atol=1e-5)
    out, fixed = run(x[:, 9:], fixed)
    np.testing.assert_allclose(out, step(x[:, 9:], grows), rtol=0, atol=1e-5)
    assert np.isnan(run(x[:, :1], fixed)[0]).all() and len(traced) == 2
    begun = mha.DecoderCache(capacity=10, dtype=dtype)
    step(x[:, :9], begun)
    np.testing.assert_allclose(run(x[:, 9:], begun)[0], out, rtol=0, atol=1e-5)
