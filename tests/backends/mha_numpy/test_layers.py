"""NumPy's layers, which compute in chunks of tokens: they equal the algebra wherever the tokens are cut."""

import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial

import numpy as np
import pytest
from judged_attention import normal
from memory_views import VIEWS

import mha_core as mha
from mha_numpy.threads import run

OPERATIONS = ("encoder_layer", "feed_forward", "attention", "linear", "layer_norm", "rms_norm", "gelu")
ACTIVATIONS = ("relu", "gelu", "gelu_tanh", "silu")


def by_the_algebra(function):
    with ExitStack() as stack:
        for op in OPERATIONS:
            stack.enter_context(mha.use_kernel(op, "algebra"))
        return function()


def assert_close(call, layer, x, **options):
    """Assert that the error is at most twice that of the algebra in float32, both measured against the algebra in float64.

    For float64 input the same number of float64 roundoffs is allowed.
    """
    exact, rounded = (
        by_the_algebra(lambda dtype=dtype: call(layer.to("numpy", dtype=dtype), x.astype(dtype), **options))
        for dtype in ("float64", "float32")
    )
    answer = call(layer, x, **options)
    assert answer.dtype == x.dtype and answer.shape == exact.shape
    unit = np.finfo(x.dtype).eps
    error, usual = np.abs(answer - exact).max(), np.abs(rounded - exact).max() / np.finfo(np.float32).eps * unit
    assert error <= 2 * usual + 8 * unit, f"off by {error}, the algebra by {usual}"


def encoder_layer(d_model=32, num_heads=4, d_ff=80, activation="gelu", norm_first=False, dtype="float32"):
    return mha.EncoderLayer.init(
        d_model=d_model, num_heads=num_heads, d_ff=d_ff, activation=activation, norm_first=norm_first, seed=1, dtype=dtype
    )


SHAPES = {
    "one sequence, no batch": (17,),
    "one long sequence": (2100,),
    "a batch of one": (1, 700),
    "whole sequences in chunks": (9, 130),
    "fewer sequences than threads": (3, 40),
    "long sequences": (2, 1300),
    "two batch axes": (4, 3, 50),
    "one token": (1,),
}


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("norm_first", [False, True])
def test_encoder_layer_of_every_shape(rng, shape, norm_first):
    layer, x = encoder_layer(norm_first=norm_first), normal(rng, *shape, 32)
    assert mha.explain(lambda: layer(x)).kernel == "chunks"
    assert_close(lambda layer, x: layer(x), layer, x)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_every_activation(rng, activation, dtype):
    layer, x = encoder_layer(activation=activation, dtype=dtype), normal(rng, 5, 60, 32, dtype=dtype) * 3
    assert_close(lambda layer, x: layer(x), layer, x)


OPTIONS = {
    "causal": lambda rng: {"mask": mha.causal()},
    "packed": lambda rng: {"mask": mha.packed([20, 1, 7, 12])},
    "lengths of each sequence": lambda rng: {"mask": mha.key_lengths(np.asarray([40, 1, 0, 33, 7, 8, 40, 2, 5]))},
    "an array for each sequence": lambda rng: {"mask": rng.random((9, 1, 40, 40)) < 0.5},
    "a bias for each sequence": lambda rng: {"bias": rng.normal(size=(9, 4, 40, 40))},
    "alibi": lambda rng: {"bias": mha.alibi(4), "mask": mha.window(9, 3)},
    "an offset for each sequence": lambda rng: {"mask": mha.causal(), "query_offset": np.arange(9) - 4},
    "a mask that is a function": lambda rng: {"mask": mha.mask_function(lambda b, h, i, j: (i + j + b) % 3 != 1)},
    "a score that is a function": lambda rng: {"bias": mha.score_function(lambda s, b, h, i, j: s * (1 + b / 8))},
    "softcap and sink": lambda rng: {"softcap": 2.0, "sink": rng.normal(size=4), "scale": 0.3},
}


@pytest.mark.parametrize("name", OPTIONS)
def test_every_option_reaches_its_own_sequence(rng, name):
    layer, x, options = encoder_layer(), normal(rng, 9, 40, 32), OPTIONS[name](rng)

    def call(layer, x):
        cast = {key: y.astype(x.dtype) if getattr(y, "dtype", None) == np.float64 else y for key, y in options.items()}
        return layer(x, **cast)

    assert mha.explain(lambda: call(layer, x)).kernel == "chunks"
    assert_close(call, layer, x)


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("shape", [(3,), (1,), (700,), (2, 3, 400)])
def test_feed_forward(rng, shape, gated):
    layer = mha.FeedForward.init(d_model=24, d_ff=3000, activation="silu", gated=gated, seed=0)
    x = normal(rng, *shape, 24)
    assert mha.explain(lambda: layer(x)).kernel == "chunks"
    assert_close(lambda layer, x: layer(x), layer, x)


@pytest.mark.parametrize("norm", [mha.LayerNorm, mha.RMSNorm])
@pytest.mark.parametrize("width", [1, 7, 384, 70_000])
def test_norms(rng, norm, width):
    layer, x = norm.init(d_model=width), normal(rng, 3, 5, width) * 10 + 100
    assert_close(lambda layer, x: layer(x), layer, x)


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_strides_do_not_matter_and_nothing_is_written(rng, view):
    layer, x = encoder_layer(), view(normal(rng, 9, 40, 32))
    given = {"x": x, **layer.arrays()}
    before = {name: array.copy(order="C") for name, array in given.items()}
    assert (layer(x) == layer(before["x"])).all()
    assert (layer.feed_forward(x) == layer.feed_forward(before["x"])).all()
    assert all((array == before[name]).all() for name, array in given.items())


@pytest.mark.parametrize("tokens", [1, 7, 31])
def test_few_tokens_and_large_weights_are_cut_by_columns(rng, tokens):
    layer = mha.FeedForward.init(d_model=512, d_ff=2048, gated=True, activation="silu", seed=0)
    x = normal(rng, tokens, 512)
    said = str(mha.explain(layer, x))
    assert said.startswith("feed_forward: algebra") and "few tokens: their products are cut by columns" in said
    assert_close(lambda layer, x: layer(x), layer, x)
    more = normal(rng, 32, 512)
    assert str(mha.explain(layer, more)).startswith("feed_forward: chunks")


def test_few_tokens_give_the_same_bits_on_any_number_of_threads(rng):
    w, b = normal(rng, 300, 5000), normal(rng, 5000)
    try:
        for tokens in (1, 3, 700):
            x, results = normal(rng, tokens, 300), []
            for threads in (1, 2, 5):
                mha.set_num_threads(threads)
                results.append(mha.linear(x, w, b))
            assert all(np.array_equal(y, results[0]) for y in results)
            np.testing.assert_allclose(results[0], x.astype(float) @ w + b, rtol=0, atol=1e-3)
    finally:
        mha.set_num_threads(None)


def test_every_call_gives_the_same_bits(rng):
    layer, x = encoder_layer(), normal(rng, 9, 130, 32)
    expected, results = layer(x), []
    run(lambda _: results.append(layer(x)), range(2))
    with ThreadPoolExecutor(6) as callers:
        results += callers.map(layer, [x] * 6)
    assert len(results) == 8 and all((y == expected).all() for y in results)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_nan_and_infinity_stay_in_their_sequence_without_a_warning(activation):
    layer = encoder_layer(activation=activation)
    x = np.random.default_rng(0).normal(size=(6, 40, 32)).astype(np.float32)
    spoilt = x.copy()
    spoilt[1, 3, 0], spoilt[2, 0, 0], spoilt[3, 0, 0] = np.nan, np.inf, 3e38
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        y, z = layer(x), layer(spoilt)
    finite = [0, 4, 5]
    np.testing.assert_allclose(z[finite], y[finite], rtol=0, atol=1e-5)
    assert np.isnan(z[1]).all() and np.isnan(z[2]).all()


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activations_of_infinity(activation):
    """-inf gives 0, and inf gives inf, also where a product with 0 or a difference of infinities would give NaN."""
    x, w = np.asarray([[-np.inf], [np.inf], [-3e38]], dtype=np.float32), np.ones((1, 1), dtype=np.float32)
    y = mha.feed_forward(x, w, None, w, None, activation=activation)
    assert abs(y[0, 0]) < 1e-6 and y[1, 0] == np.inf and abs(y[2, 0]) < 1e-6


@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh", "silu"])
def test_activations_between_products_are_right_to_a_few_roundings_of_x(activation):
    x = np.linspace(-30, 30, 400_001, dtype=np.float32)[:, None]
    w = np.ones((1, 1), dtype=np.float32)
    y = mha.feed_forward(x, w, None, w, None, activation=activation)
    function = partial(mha.gelu, approximate="tanh") if activation == "gelu_tanh" else getattr(mha, activation)
    exact = function(x.astype(np.float64))
    unit = np.finfo(np.float32).eps / 2
    assert (np.abs(y - exact) <= 5 * unit * np.abs(x) + 1e-30).all()
