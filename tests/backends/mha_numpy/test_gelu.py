"""GELU on NumPy: its error bound, shapes and strides."""

from functools import partial

import numpy as np
import pytest
from gelu_ranges import RANGES, assert_close, exact_gelu

import mha_core as mha
from mha_numpy import tasks


@pytest.mark.parametrize("name", RANGES)
@pytest.mark.parametrize("sign", [1, -1])
def test_gelu_is_within_its_bound(name, sign):
    x = (sign * RANGES[name]).astype(np.float32)
    assert_close(mha.gelu(x), x)


def test_gelu_of_infinity_and_nan():
    y = mha.gelu(np.asarray([np.inf, -np.inf, np.nan, 0.0], dtype=np.float32))
    assert y[0] == np.inf and abs(y[1]) < 1e-15 and np.isnan(y[2]) and y[3] == 0


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


def tanh_gelu(x):
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


FORMS = {
    "float64": (mha.gelu, np.float64, exact_gelu, {"rtol": 0, "atol": 2e-15}),
    "float16, rounded once": (mha.gelu, np.float16, exact_gelu, {"rtol": 2.0**-10, "atol": 2.0**-24}),
    "tanh in float32": (ACTIVATIONS["tanh"], np.float32, tanh_gelu, {"rtol": 0, "atol": 1e-6}),
    "tanh in float64": (ACTIVATIONS["tanh"], np.float64, tanh_gelu, {"rtol": 0, "atol": 1e-14}),
}


@pytest.mark.parametrize(("function", "dtype", "exact", "tolerance"), FORMS.values(), ids=FORMS)
def test_other_dtypes_and_the_tanh_form_are_precise(rng, function, dtype, exact, tolerance):
    x = np.concatenate([np.linspace(-40, 40, 20_001), 3 * rng.normal(size=20_000)]).astype(dtype)
    y = function(x)
    assert y.dtype == dtype
    np.testing.assert_allclose(y, exact(x.astype(np.float64)), **tolerance)
