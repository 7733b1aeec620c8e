"""Masks and scores as functions on JAX: compiled, differentiated and mapped by JAX itself."""

import numpy as np
import pytest

import mha_core as mha

jax = pytest.importorskip("jax")
jnp = jax.numpy


def curve(xp):
    def function(score, b, h, q, k, slopes, table, ids):
        return xp.where(ids[q] == ids[k], 3 * xp.tanh(score) - slopes[h] * abs(q - k), score + table[h, ids[k]])

    return function


def attention(xp, ids):
    def attend(query, key, value, slopes, table):
        bias = mha.score_function(curve(xp), [slopes, table, ids])
        mask = mha.mask_function(lambda b, h, q, k: q >= k - b)
        return mha.scaled_dot_product_attention(query, key, value, mask=mask, bias=bias)

    return attend


def problem(length):
    """Return ids of positions, the arrays of ``attention``, and a gradient of its result."""
    rng = np.random.default_rng(length)
    ids = rng.integers(0, 3, length)
    arrays = [rng.standard_normal((2, 4, length, 8)) for _ in range(3)] + [rng.random(4), rng.standard_normal((4, 3))]
    return ids, arrays, rng.standard_normal((2, 4, length, 8))


@pytest.mark.parametrize(("length", "kernel"), [(20, "algebra"), (500, "scan")])
def test_jax_compiles_and_differentiates_functions(length, kernel):
    ids, arrays, d = problem(length)
    with jax.enable_x64(True):
        expected, pullback = mha.vjp(attention(np, ids), *arrays)
        gradients = pullback(d)
        attend, on_jax = attention(jnp, jnp.asarray(ids)), [jnp.asarray(x) for x in arrays]
        with mha.use_kernel("attention", kernel), mha.use_kernel("attention_vjp", kernel):
            for function in (attend, jax.jit(attend)):
                assert np.allclose(function(*on_jax), expected, atol=1e-12)
            total = jax.grad(lambda *arrays: (attend(*arrays) * d).sum(), argnums=tuple(range(5)))
            of_tape = mha.vjp(attend, *on_jax)[1](jnp.asarray(d))
            for results in (total(*on_jax), jax.jit(total)(*on_jax), of_tape):
                for actual, wanted in zip(results, gradients, strict=True):
                    assert np.allclose(actual, wanted, atol=1e-10)


def test_gradients_of_programs_that_xla_does_not_optimise():
    """XLA may compute the scores twice, rounded otherwise; then none equals the maximum, and JAX divides by how many do."""
    ids, arrays, d = problem(20)
    options = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
    with jax.enable_x64(True), mha.use_kernel("attention", "algebra"):
        attend = attention(jnp, jnp.asarray(ids))
        total = jax.grad(lambda *arrays: (attend(*arrays) * d).sum(), argnums=tuple(range(5)))
        gradients = jax.jit(total, compiler_options=options)(*(jnp.asarray(x) for x in arrays))
    for actual, wanted in zip(gradients, mha.vjp(attention(np, ids), *arrays)[1](d), strict=True):
        assert np.allclose(actual, wanted, atol=1e-10)


def test_a_mapped_function_sees_one_batch_element():
    x = jnp.asarray(np.random.default_rng(0).standard_normal((3, 2, 9, 4)))
    mask = mha.mask_function(lambda b, h, q, k: (q >= k) & (b == 0))

    def attend(x):
        return mha.scaled_dot_product_attention(x, x, x, mask=mask)

    assert np.allclose(jax.vmap(attend)(x), mha.scaled_dot_product_attention(x, x, x, mask=mha.causal()), atol=1e-6)
