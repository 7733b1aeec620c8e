"""Attention and its gradients under JAX's transforms, held to the algebra on NumPy in float64, or to other calls bit by bit.

JAX has 64-bit types only if a process enables them: with JAX_ENABLE_X64=1 the arrays are float64.
"""

import jax
import jax.numpy as jnp
import numpy as np

import mha_core as mha

X64 = jax.config.jax_enable_x64
DTYPE = np.float64 if X64 else np.float32


def by(kernel, function):
    """Return a function that computes attention and its gradients by a kernel."""

    def call(*arguments, **options):
        with mha.use_kernel("attention", kernel), mha.use_kernel("attention_vjp", kernel):
            return function(*arguments, **options)

    return call


def assert_like_numpy(rng, kernel, arrays, make_options, tolerance):
    """Compare the state of a kernel and all gradients under jit, where every array is an argument, with those on NumPy.

    arrays: query, key and value. ``make_options(make)`` returns the options; their floating arrays have gradients too.
    """
    made = []

    def make(x):
        x = np.asarray(x)
        floating = x.dtype.kind == "f"
        made.append(jnp.asarray(x, dtype=DTYPE if floating else None))
        return x.astype(np.float64) if floating else x

    options = make_options(make)
    arrays = [np.asarray(x, dtype=np.float64) for x in arrays]
    state, pullback = by("algebra", mha.vjp)(mha.attention_state, *arrays, **options)
    d_out, d_lse = rng.normal(size=state.out.shape), rng.normal(size=state.lse.shape)
    gradients = by("algebra", pullback)(mha.AttentionState(d_out, d_lse))
    of_options = [each for each in gradients.options.values() if each is not None]
    expected = [*state, *gradients, *(getattr(each, "table", getattr(each, "array", each)) for each in of_options)]

    @jax.jit
    def compute(arrays, made, d):
        def attend(arrays, floats):
            floats = iter(floats)
            every = iter([next(floats) if jnp.issubdtype(x.dtype, jnp.floating) else x for x in made])
            return by(kernel, mha.attention_state)(*arrays, **make_options(lambda x: next(every)))

        state, pull = jax.vjp(attend, arrays, [x for x in made if jnp.issubdtype(x.dtype, jnp.floating)])
        gradients, of_floats = pull(d)
        return [*state, *gradients, *of_floats]

    *there, d_out, d_lse = (jnp.asarray(x, dtype=DTYPE) for x in (*arrays, d_out, d_lse))
    actual = compute(there, made, mha.AttentionState(d_out, d_lse))
    names = ("out", "lse", "d_query", "d_key", "d_value", *["the gradient of an option"] * len(of_options))
    for name, x, exact in zip(names, actual, expected, strict=True):
        assert x.dtype == DTYPE
        np.testing.assert_allclose(x, exact, rtol=tolerance, atol=tolerance, err_msg=name)


def assert_same_bits(actual, expected):
    assert actual.dtype == expected.dtype and actual.shape == expected.shape
    assert np.asarray(actual).tobytes() == np.asarray(expected).tobytes()


def close(actual, expected, atol=2e-5):
    np.testing.assert_allclose(np.asarray(actual), np.asarray(expected), rtol=atol, atol=atol)


def loss_of(kernel, query, key, value, sink, mask=None):
    """Return a number that depends on out and lse, with a softcap and a sink; a kernel computes attention and its gradients."""
    out, lse = by(kernel, mha.attention_state)(query, key, value, mask=mask, sink=sink, softcap=3.0)
    return jnp.sum(jnp.sin(out)) + jnp.sum(jnp.cos(lse))


def loss_inputs(rng, *batch):
    """Return the arrays of ``loss_of``, with batch axes."""
    shapes = [*[(*batch, 2, 6, 4)] * 3, (*batch, 2)]
    return tuple(jnp.asarray(rng.normal(size=shape), DTYPE) for shape in shapes)
