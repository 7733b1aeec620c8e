"""The compiled linear map of int8 weights: the bits of the algebra on every level, and what the binding refuses."""

import gc
import weakref
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from native import LEVELS, in_process, needs_native

import mha_core as mha

pytestmark = [needs_native, pytest.mark.usefixtures("native")]


@pytest.fixture(params=LEVELS)
def at_level(request, native):
    """The compiled module, held at a level."""
    native.use_level(request.param)
    yield native
    native.use_level(None)


def weight(rng, inputs, outputs):
    return mha.quantize_weight(rng.normal(size=(inputs, outputs)).astype(np.float32))


def by_algebra(x, w, b=None):
    with mha.use_kernel("linear_int8", "algebra"):
        return mha.linear(x, w, b)


def by_native(x, w, b=None):
    with mha.use_kernel("linear_int8", "native"):
        return mha.linear(x, w, b)


@pytest.mark.parametrize("inputs", [1, 3, 4, 15, 64, 67, 1030, 1100])
@pytest.mark.parametrize("outputs", [1, 7, 64, 65, 130])
def test_the_bits_are_those_of_the_algebra(at_level, rng, inputs, outputs):
    w, b = weight(rng, inputs, outputs), rng.normal(size=outputs).astype(np.float32)
    for rows in (1, 2, 5, 6, 7, 13, 100):
        x = rng.normal(size=(rows, inputs)).astype(np.float32)
        np.testing.assert_array_equal(by_native(x, w, b), by_algebra(x, w, b))
        np.testing.assert_array_equal(by_native(x, w), by_algebra(x, w))


def test_the_largest_integers_add_up_exactly(at_level):
    """Two products in 16 bits would saturate."""
    for inputs in (2, 64, 1000):
        for sign in (1, -1):
            values = np.full((inputs, 3), 127 * sign, dtype=np.int8)
            w = mha.Int8Weight(values, np.ones(3, dtype=np.float32))
            got = by_native(np.full((2, inputs), 127, dtype=np.float32), w)
            assert got.tolist() == [[np.float32(sign * 127 * 127 * inputs)] * 3] * 2


def test_rows_that_are_zero_tied_or_not_finite(at_level, rng):
    w, b = weight(rng, 70, 20), rng.normal(size=20).astype(np.float32)
    x = rng.normal(size=(8, 70)).astype(np.float32)
    x[0], x[1], x[2] = 0, 1e-38, 1e30
    x[3, 69], x[4, 0], x[5, 33] = np.nan, np.inf, -np.inf
    x[6] = rng.integers(-253, 254, size=70) / 2
    x[6, 5] = 127
    got = by_native(x, w, b)
    np.testing.assert_array_equal(got, by_algebra(x, w, b))
    assert np.isnan(got).all(axis=1).tolist() == [False] * 3 + [True] * 3 + [False] * 2


def test_no_rows_in_the_first_call_of_a_thread(native, rng):
    with ThreadPoolExecutor(1) as pool:
        got = pool.submit(by_native, np.empty((2, 0, 30), dtype=np.float32), weight(rng, 30, 5)).result()
    assert got.shape == (2, 0, 5)


def test_any_number_of_threads_gives_the_same_bits(native, rng):
    w = weight(rng, 300, 500)
    packed = native.pack_int8(w.values, w.scale)
    for rows in (1, 40, 700):
        x = rng.normal(size=(rows, 300)).astype(np.float32)
        results = [np.empty((rows, 500), np.float32) for _ in range(3)]
        for threads, y in zip((1, 2, 5), results, strict=True):
            native.linear_int8(packed, threads, 0, x, None, y)
        assert all(np.array_equal(y, results[0]) for y in results)
        np.testing.assert_array_equal(results[0], by_algebra(x, w))


def test_rows_with_gaps_are_read_and_nothing_beside_them_is_written(at_level, rng):
    w, wide = weight(rng, 33, 21), rng.normal(size=(9, 40)).astype(np.float32)
    y = np.full((9, 30), 7, np.float32)
    at_level.linear_int8(at_level.pack_int8(w.values, w.scale), 1, 0, wide[:, 3:36], None, y[:, 4:25])
    np.testing.assert_array_equal(y[:, 4:25], by_algebra(wide[:, 3:36], w))
    assert (y[:, :4] == 7).all() and (y[:, 25:] == 7).all()


@pytest.mark.parametrize("array", [np.asarray, torch.from_numpy], ids=["numpy", "torch"])
def test_it_is_chosen_on_both_libraries(rng, array):
    layer = mha.EncoderLayer.init(d_model=16, num_heads=2, d_ff=32, activation="gelu", seed=0).quantized()
    x = rng.normal(size=(2, 5, 16)).astype(np.float32)
    w = layer.attention.w_q
    there = mha.Int8Weight(array(w.values), array(w.scale))
    assert str(mha.explain(mha.linear, array(x), there)).startswith("linear_int8: native (")
    np.testing.assert_array_equal(np.asarray(mha.linear(array(x), there)), by_algebra(x, w))
    negative = torch.complex(torch.from_numpy(x), torch.from_numpy(x)).conj().imag
    assert negative.is_neg()
    np.testing.assert_array_equal(mha.linear(negative, layer.to("torch").attention.w_q).numpy(), by_algebra(-x, w))


def test_a_layer_of_numpy_arrays_is_computed_as_a_whole(rng):
    layer = mha.EncoderLayer.init(d_model=16, num_heads=2, d_ff=32, activation="gelu", seed=0).quantized()
    gated = mha.FeedForward.init(d_model=16, d_ff=24, gated=True, seed=1).quantized()
    x = rng.normal(size=(40, 5, 16)).astype(np.float32)
    for called, op in ((layer, "encoder_layer"), (gated, "feed_forward")):
        assert str(mha.explain(called, x)).startswith(f"{op}: native (")
        with mha.use_kernel(op, "algebra"):
            expected = called(x)
        np.testing.assert_allclose(called(x), expected, rtol=0, atol=0.05)
        assert (np.abs(called(x) - expected) < 1e-5).mean() > 0.9  # others are a step of an integer apart


def test_what_it_lacks_it_refuses(rng):
    w = weight(rng, 4, 3)
    wide = mha.Int8Weight(w.values, w.scale.astype(float))
    meta = mha.Int8Weight(
        *(torch.zeros(shape, dtype=d, device="meta") for shape, d in (((4, 3), torch.int8), (3, torch.float32)))
    )
    for x, each, reason in (
        (np.ones((2, 4)), wide, "computes in float32, not float64"),
        (torch.ones(2, 4, device="meta"), meta, "computes on the CPU, not on meta"),
    ):
        assert f"not native: {reason}" in str(mha.explain(mha.linear, x, each))


def test_a_weight_is_packed_once_and_for_its_level(native, rng):
    w, x = weight(rng, 20, 10), rng.normal(size=(3, 20)).astype(np.float32)
    expected = by_native(x, w)
    packed = w.cache["native"]
    for each in LEVELS:
        native.use_level(each)
        np.testing.assert_array_equal(by_native(x, w), expected)
        assert w.cache["native"] is packed
    native.use_level(None)
    reference = weakref.ref(w)
    del w
    gc.collect()
    assert reference() is None  # nothing else holds it


VALUES, SCALE, X, Y = (
    np.zeros((4, 3), np.int8),
    np.ones(3, np.float32),
    np.ones((2, 4), np.float32),
    np.ones((2, 3), np.float32),
)


@pytest.mark.parametrize(
    "arguments",
    [
        (VALUES.astype(np.uint8), SCALE),
        (VALUES, SCALE[:2]),
        (VALUES[0], SCALE),
        (VALUES, SCALE.astype(float)),
        (VALUES[:0], SCALE),
    ],
)
def test_a_wrong_weight_is_refused(native, arguments):
    with pytest.raises(ValueError, match=r"expected int8 numbers \(n, m\) and float32 numbers \(m,\)"):
        native.pack_int8(*arguments)


def test_wrong_rows_are_refused(native):
    packed = native.pack_int8(VALUES, SCALE)
    native.linear_int8(packed, 1, 0, X, SCALE, Y)
    for (x, b, y), message in (
        ((X[:, :3].copy(), None, Y), "x: expected 2 rows of 4 float32 numbers without gaps"),
        ((X[:1], None, Y), "x: expected 2 rows of 4"),
        ((X, X[0], Y), "b: expected 2 rows of 3"),
        ((X, None, X), "y has 4 columns; expected 3"),
        ((X.astype(float), None, Y), "x: expected 2 rows"),
    ):
        with pytest.raises(ValueError, match=message):
            native.linear_int8(packed, 1, 0, x, b, y)
    with pytest.raises(TypeError, match="x is required"):
        native.linear_int8(packed, 1, 0, None, None, Y)
    with pytest.raises(TypeError, match="takes 6 arguments, not 1"):
        native.linear_int8(packed)
    with pytest.raises(ValueError, match="PyCapsule"):
        native.linear_int8(X, 1, 0, X, None, Y)


def test_two_threads_may_pack_a_weight_at_once():
    code = """
import threading
import numpy as np, mha_core as mha
mha.set_num_threads(3)
rng = np.random.default_rng(0)
layer = mha.EncoderLayer.init(d_model=32, num_heads=4, d_ff=64, seed=0).quantized()
x = rng.normal(size=(64, 40, 32)).astype(np.float32)
results = []
callers = [threading.Thread(target=lambda: results.append(layer(x))) for _ in range(4)]
[caller.start() for caller in callers], [caller.join() for caller in callers]
print(len(results), all(np.array_equal(y, results[0]) for y in results))
"""
    assert in_process(code) == "4 True"
