"""GELU on NumPy: its error bound, shapes and strides."""

from functools import partial

import numpy as np
import pytest
from gelu_ranges import RANGES, assert_close, exact_gelu
from memory_views import VIEWS

import mha_core as mha
from mha_numpy import tasks


@pytest.mark.parametrize("name", RANGES)
@pytest.mark.parametrize("sign", [1, -1])
def test_gelu_is_within_its_bound(name, sign):
    x = (sign * RANGES[name]).astype(np.float32)
    assert_close(mha.gelu(x), x)


def test_gelu_of_random_numbers_is_within_its_bound(rng):
    x = (rng.normal(size=200_000) * 3).astype(np.float32)
    assert mha.explain("gelu", x).kernel == "tiles"
    assert_close(mha.gelu(x), x)


def test_gelu_of_infinity_and_nan():
    y = mha.gelu(np.asarray([np.inf, -np.inf, np.nan, 0.0, -3e38], dtype=np.float32))
    assert y[0] == np.inf
    assert abs(y[1]) < 1e-15
    assert np.isnan(y[2])
    assert y[3] == 0
    assert abs(y[4]) < 1e-15


def test_nan_and_infinity_affect_no_other_element(rng):
    x = rng.normal(size=3 * tasks.TILE).astype(np.float32)
    expected = mha.gelu(x)
    for at, poison in ((0, np.nan), (tasks.TILE, np.inf), (x.size - 1, -np.inf)):
        x[at] = poison
    clean = np.isfinite(x)
    assert clean.sum() == x.size - 3
    np.testing.assert_array_equal(mha.gelu(x)[clean], expected[clean])


@pytest.mark.parametrize(
    "shape", [(), (0,), (3, 0, 2), (1,), (2, 3, 4), (tasks.TILE,), (2, tasks.TILE + 1), (5, 7, 1001)], ids=str
)
def test_gelu_keeps_the_shape_and_gives_a_contiguous_array(rng, shape):
    x = np.asarray(rng.normal(size=shape), dtype=np.float32)
    y = mha.gelu(x)
    assert isinstance(y, np.ndarray)
    assert (y.shape, y.dtype, y.flags.c_contiguous) == (shape, np.float32, True)
    assert not np.shares_memory(x, y)
    assert_close(y, x)


ACTIVATIONS = {"gelu": mha.gelu, "tanh": partial(mha.gelu, approximate="tanh"), "silu": mha.silu, "relu": mha.relu}


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("activate", ACTIVATIONS.values(), ids=ACTIVATIONS)
def test_an_array_without_axes_gives_an_array_not_a_scalar(dtype, activate):
    y = activate(np.asarray(1.5, dtype=dtype))
    assert isinstance(y, np.ndarray)
    assert (y.shape, y.dtype) == ((), dtype)


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_strides_do_not_matter_to_gelu(rng, view):
    x = view(rng.normal(size=(3, 150, 301)).astype(np.float32))
    before = x.copy(order="C")
    y = mha.gelu(x)
    assert y.flags.c_contiguous
    np.testing.assert_array_equal(y, mha.gelu(before))
    np.testing.assert_array_equal(x, before)


def test_gelu_in_float64_is_precise(rng):
    x = np.concatenate([np.linspace(-40, 40, 20_001), rng.normal(size=20_000)])
    y = mha.gelu(x)
    assert y.dtype == np.float64
    np.testing.assert_allclose(y, exact_gelu(x), rtol=0, atol=2e-15)


@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float32, 1e-6), (np.float64, 1e-14)])
def test_the_tanh_form_of_gelu_is_precise(rng, dtype, tolerance):
    x = rng.normal(size=10_000).astype(dtype) * 3
    wide = x.astype(np.float64)
    expected = 0.5 * wide * (1 + np.tanh(np.sqrt(2 / np.pi) * (wide + 0.044715 * wide**3)))
    y = mha.gelu(x, approximate="tanh")
    assert y.dtype == dtype
    np.testing.assert_allclose(y, expected, rtol=0, atol=tolerance)


def test_half_precision_gelu_is_rounded_once_from_float32(rng):
    x = rng.normal(size=10_000).astype(np.float16)
    y = mha.gelu(x)
    assert y.dtype == np.float16
    np.testing.assert_allclose(y, exact_gelu(x), rtol=2**-10, atol=2.0**-24)
