"""GELU on NumPy: its error bound and shapes. tests/core/ops/test_functional.py tests infinity, and GELU in float64."""

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


def test_half_precision_gelu_is_rounded_once_from_float32(rng):
    x = rng.normal(size=10_000).astype(np.float16)
    y = mha.gelu(x)
    assert y.dtype == np.float16
    np.testing.assert_allclose(y, exact_gelu(x), rtol=2**-10, atol=2.0**-24)
