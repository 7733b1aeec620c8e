"""NumPy's training steps of whole layers: numbers of the algebra in float64, the same bits, what is wanted, NaN."""

from dataclasses import replace

import numpy as np
import pytest
from judged_attention import normal

import mha_core as mha
from mha_numpy import layer_gradients

TOLERANCE = 2e-5  # of the greatest number in a gradient


def made(rng, *, norm_first=False, activation="gelu", kv_heads=None):
    layer = mha.EncoderLayer.init(d_model=32, num_heads=4, d_ff=48, activation=activation, norm_first=norm_first, seed=0)
    if kv_heads is not None:
        attention = mha.MultiHeadAttention.init(d_model=32, num_heads=4, num_kv_heads=kv_heads, seed=1)
        layer = replace(layer, attention=attention)
    return layer.map(lambda w: (w + 0.1 * rng.normal(size=w.shape)).astype(np.float32))


def named(gradients):
    layer, x = gradients
    return {**layer.arrays(), "x": x}


def exactly(layer, x, d, **options):
    """Return the result and the gradients of the algebra in float64."""
    wide = layer.to("numpy", dtype="float64")
    op = "feed_forward_vjp" if isinstance(layer, mha.FeedForward) else "encoder_layer_vjp"
    with mha.use_kernel(op, "algebra"):
        out, pullback = mha.vjp(wide, x.astype(np.float64), **options)
        return out, named(pullback(d.astype(np.float64)))


def assert_equal_to_the_algebra(layer, x, d, **options):
    out, pullback = mha.vjp(layer, x, **options)
    exact_out, exact = exactly(layer, x, d, **options)
    assert np.abs(out - exact_out).max() <= TOLERANCE * np.abs(exact_out).max()
    for name, actual in named(pullback(d)).items():
        of_queries = "attention.b_q" if name == "attention.b_k" else name  # that of b_k is 0: softmax ignores a common shift
        assert actual.dtype == np.float32 and actual.shape == exact[name].shape
        assert np.abs(actual - exact[name]).max() <= TOLERANCE * max(1.0, np.abs(exact[of_queries]).max()), name


CALLS = {
    "several sequences": ((3, 50, 32), {}),
    "one sequence": ((1100, 32), {"mask": mha.window(40, 0)}),
    "packed": ((300, 32), {"mask": mha.packed([100, 150, 50])}),
    "two batch axes": ((2, 2, 40, 32), {"mask": mha.causal(), "softcap": 5.0}),
    "one token": ((1, 32), {}),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("norm_first", [False, True], ids=["post-norm", "pre-norm"])
@pytest.mark.parametrize("activation", ["gelu", "relu"])
def test_an_encoder_layer(rng, call, norm_first, activation):
    shape, options = CALLS[call]
    layer, x = made(rng, norm_first=norm_first, activation=activation), normal(rng, *shape)
    explained = mha.explain(layer, x, gradients=True, **options)
    assert (explained.op, explained.kernel) == ("encoder_layer_vjp", "chunks")
    assert_equal_to_the_algebra(layer, x, normal(rng, *shape), **options)


@pytest.mark.parametrize("kv_heads", [1, 2])
def test_grouped_queries_without_biases(rng, kv_heads):
    layer = made(rng, kv_heads=kv_heads)
    attention = replace(layer.attention, b_q=None, b_k=None, b_v=None, b_o=None)
    layer = replace(layer, attention=attention, norm_1=mha.LayerNorm(None, None))
    assert_equal_to_the_algebra(layer, normal(rng, 3, 50, 32), normal(rng, 3, 50, 32))


@pytest.mark.parametrize("activation", ["gelu", "relu"])
@pytest.mark.parametrize("batch", [(), (3,), (2, 600)], ids=str)
def test_a_feed_forward_network(rng, activation, batch):
    layer = made(rng, activation=activation).feed_forward
    x, d = normal(rng, *batch, 32), normal(rng, *batch, 32)
    explained = mha.explain(layer, x, gradients=True)
    assert (explained.op, explained.kernel) == ("feed_forward_vjp", "chunks")
    assert_equal_to_the_algebra(layer, x, d)


@pytest.mark.parametrize("norm_first", [False, True], ids=["post-norm", "pre-norm"])
def test_any_strides_threads_and_calls_give_the_same_bits(rng, norm_first, set_num_threads):
    layer, x, d = made(rng, norm_first=norm_first), normal(rng, 4, 300, 32), normal(rng, 4, 300, 32)
    given, results = [y.copy() for y in (x, d)], set()
    for threads in (1, 2, 3, 8):
        set_num_threads(threads)
        x_view, d_view = (np.ascontiguousarray(y[::-1])[::-1] if threads > 2 else y for y in (x, d))
        out, pullback = mha.vjp(layer, x_view)
        for _ in range(2):
            results.add(b"".join(y.tobytes() for y in (out, *named(pullback(d_view)).values())))
    assert len(results) == 1
    assert all((a == b).all() for a, b in zip((x, d), given, strict=True)), "an argument was written to"


@pytest.mark.parametrize("norm_first", [False, True], ids=["post-norm", "pre-norm"])
@pytest.mark.parametrize(
    "names",
    [{"attention.w_q"}, {"feed_forward.b_2"}, {"norm_1.weight"}, {"norm_2.bias", "feed_forward.w_1"}, {"attention.w_o"}],
    ids=lambda names: "+".join(sorted(names)),
)
def test_gradients_that_are_wanted_are_those_of_all(rng, norm_first, names):
    layer, x, d = made(rng, norm_first=norm_first), normal(rng, 2, 80, 32), normal(rng, 2, 80, 32)
    every = mha.vjp(layer, x)[1](d)[0].arrays()
    _, pullback = mha.vjp(lambda layer: layer(x), layer, wrt=lambda name: name.removeprefix("layer.") in names)
    (wanted,) = pullback(d)
    assert wanted.arrays().keys() == names
    for name in names:
        np.testing.assert_array_equal(wanted.arrays()[name], every[name])


def test_nan_stays_in_its_sequence(rng):
    layer, x, d = made(rng), normal(rng, 3, 40, 32), normal(rng, 3, 40, 32)
    poisoned = x.copy()
    poisoned[1, 7] = np.nan
    actual, expected = (mha.vjp(layer, y)[1](d)[1] for y in (poisoned, x))
    assert np.isnan(actual[1]).any()
    np.testing.assert_allclose(actual[[0, 2]], expected[[0, 2]], atol=1e-5)


@pytest.mark.parametrize("x", [-np.inf, -1e30, 1e30, np.inf])
def test_gelu_and_its_slope_far_from_zero(x):
    value, slope = np.full((1, 4), x, np.float32), np.empty((1, 4), np.float32)
    layer_gradients.write_slope(value, slope, gelu=value)
    assert (value == max(x, 0)).all() and np.abs(slope - (x > 0)).max() < 1e-30


@pytest.mark.parametrize(
    ("activation", "dtype", "reason"), [("silu", "float32", "gelu and relu"), ("gelu", "float64", "float32")]
)
def test_other_activations_are_computed_by_parts(activation, dtype, reason):
    layer = mha.FeedForward.init(d_model=8, d_ff=16, activation=activation, seed=0, dtype=dtype)
    explained = mha.explain(layer, np.ones((2, 8), dtype=dtype), gradients=True)
    assert reason in explained.calls[0].rejected[0].reason
