"""mha-jax's kernels where they are chosen: in bounded memory under jit, for layers too; and value_and_grad on JAX."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import needs
import numpy as np
import pytest

import mha_core as mha

pytestmark = [pytest.mark.full, pytest.mark.rotating, needs.installed("mha_jax", "jax")]


def close(actual, expected):
    np.testing.assert_allclose(np.asarray(actual), np.asarray(expected), rtol=2e-4, atol=2e-4)


def normal(rng, *shape):
    return jnp.asarray(rng.normal(size=shape), dtype=jnp.float32)


# the choice of the kernel, and its memory


def test_large_problems_go_to_the_loop_and_small_ones_to_the_algebra():
    small, large = jnp.ones((8, 64, 4)), jnp.ones((8, 512, 4))
    assert mha.explain("attention", large, large, large).kernel == "scan"
    assert mha.explain("attention", small, small, small).kernel is None
    assert "leaves at most" in str(mha.explain("attention", small, small, small))


def test_a_second_call_compiles_nothing(rng):
    from mha_jax import scan

    def gradient(x, n):
        return jax.grad(lambda x: mha.scaled_dot_product_attention(x, x, x, mask=mha.key_lengths(n)).sum())(x)

    x = normal(rng, 1, 4, 600, 4)
    gradient(x, jnp.asarray([600]))
    before = scan._attention._cache_size(), scan._gradients._cache_size()
    gradient(x + 1, jnp.asarray([7]))
    assert (scan._attention._cache_size(), scan._gradients._cache_size()) == before


def temporary_megabytes(function, *shapes):
    """Return the memory that a compiled function takes beyond its arguments and results."""
    given = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    return jax.jit(function).lower(*given).compile().memory_analysis().temp_size_in_bytes / 1e6


def attend_with(**options):
    def loss(query, key, value, *more):
        given = dict(options)
        if more and more[0].ndim == 1:
            given["sink"] = more[0]
        elif more:
            table = more[0].shape[0] == 32
            given["bias"] = mha.relative_bias(more[0], bidirectional=True, max_distance=128) if table else more[0]
        return mha.scaled_dot_product_attention(query, key, value, **given).sum()

    return loss


LARGE = {
    "plain": (attend_with(), ()),
    "causal, softcap": (attend_with(mask=mha.causal(), softcap=9.0), ()),
    "alibi, sink": (attend_with(bias=mha.alibi(8)), (lambda n: (8,),)),
    "relative": (attend_with(), (lambda n: (32, 8),)),
    "bias": (attend_with(), (lambda n: (8, n, n),)),
    "packed, dropout": (
        attend_with(mask=mha.packed([100, 400, 524, 1024]), weight_dropout=mha.weight_dropout(0.1, seed=0)),
        (),
    ),
}


@pytest.mark.parametrize("name", LARGE)
def test_13_under_jit_memory_of_a_gradient_is_that_of_blocks(name):
    """At length 2048, where the scores of 8 heads are 134 MB, the gradients need 13 to 25."""
    loss, more = LARGE[name]
    shapes = [(1, 8, 2048, 64)] * 3 + [shape(2048) for shape in more]
    assert temporary_megabytes(loss, *shapes) <= 35
    assert temporary_megabytes(jax.grad(loss, tuple(range(len(shapes)))), *shapes) <= 35


def test_13_under_jit_memory_of_a_gradient_grows_with_the_length():
    gradient = jax.grad(attend_with(mask=mha.causal()), (0, 1, 2))
    short, long = (temporary_megabytes(gradient, *[(1, 8, n, 64)] * 3) for n in (4096, 8192))
    assert long <= 2.2 * short and short <= 50


def test_13_a_gradient_of_gradients_computes_weights_again():
    def squared(q, k, v):
        return sum(jnp.sum(x**2) for x in jax.grad(attend_with(mask=mha.causal()), (0, 1, 2))(q, k, v))

    assert temporary_megabytes(jax.grad(squared, (0, 1, 2)), *[(1, 8, 2048, 64)] * 3) <= 200


def test_13_an_encoder_is_trained_under_jit_in_bounded_memory():
    """Two layers at length 2048: the scores of all heads are 67 MB for each layer."""
    encoder = mha.Encoder.init(d_model=32, num_heads=4, d_ff=64, num_layers=2, seed=0, backend="jax")
    weights = encoder.arrays()

    def step(x, *arrays):
        left = iter(arrays)
        _, gradients = mha.value_and_grad(lambda model, x: jnp.mean(model(x) ** 2))(encoder.map(lambda _: next(left)), x)
        return list(gradients.arrays().values())

    assert temporary_megabytes(step, (1, 2048, 32), *(x.shape for x in weights.values())) <= 40


# value_and_grad


def test_value_and_grad_by_jax(rng):
    """With something else beside the value, zeros for what is not used, None for integers, and under jit."""
    encoder = mha.EncoderLayer.init(d_model=8, num_heads=2, d_ff=16, seed=0)
    model, x = {"layer": encoder, "unused": np.ones(3, np.float32), "ids": np.arange(2)}, np.asarray(normal(rng, 2, 5, 8))

    def loss(model, x):
        y = model["layer"](x, mask=mha.causal())
        return y.__array_namespace__().mean(y * y), {"y": y, "state": mha.AttentionState(y, None), "name": "a"}

    (value, aux), expected = mha.value_and_grad(loss, has_aux=True)(model, x)
    there = {"layer": encoder.to("jax"), "unused": jnp.ones(3), "ids": jnp.arange(2)}

    def computed(layer, x):
        return mha.value_and_grad(loss, has_aux=True)(there | {"layer": layer}, x)

    (got, got_aux), gradients = computed(there["layer"], jnp.asarray(x))
    close(got, value)
    assert got_aux["name"] == "a" and got_aux["state"].lse is None
    assert isinstance(got_aux["y"], jax.Array) and not isinstance(got_aux["y"], jax.core.Tracer)
    close(got_aux["y"], aux["y"])
    assert gradients["ids"] is None and not gradients["unused"].any() and gradients["unused"].shape == (3,)
    for name, d in expected["layer"].arrays().items():
        close(gradients["layer"].arrays()[name], d)

    @jax.jit
    def under_jit(arrays, x):
        left = iter(arrays)
        (value, aux), gradients = computed(there["layer"].map(lambda _: next(left)), x)
        return value, aux["y"], list(gradients["layer"].arrays().values())

    value, y, arrays = under_jit(list(there["layer"].arrays().values()), jnp.asarray(x))
    close(value, got)
    close(y, got_aux["y"])
    for actual, exact in zip(arrays, gradients["layer"].arrays().values(), strict=True):
        close(actual, exact)


def test_a_value_that_is_no_scalar_is_refused():
    with pytest.raises(ValueError, match=r"returned an array of shape \(2,\)"):
        mha.value_and_grad(mha.relu)(jnp.ones(2))
    with pytest.raises(TypeError, match="returned float"):
        mha.value_and_grad(lambda x: 1.0)(jnp.ones(2))


def test_the_records_of_the_backend_are_those_of_the_page_and_more():
    import mha_jax
    from mha_jax import backend

    (short,), (long,) = backend.mha_backends(), mha_jax.mha_backends()
    more = dict.fromkeys(("value_and_grad", "write_at", "transforms", "versions", "clear_caches"))
    assert replace(long, **more, namespace=short.namespace) == short
