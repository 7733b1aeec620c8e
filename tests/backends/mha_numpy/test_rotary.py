"""Rotary embedding on NumPy, in tiles: bit for bit the algebra's, whatever the order of axes."""

import numpy as np
import pytest

import mha_core as mha
import mha_numpy.rotary as kernel
from mha_core.algebra import positions as algebra

SHAPES = {
    "one sequence": ((7, 6), (7, 3), None),
    "some features": ((2, 3, 7, 9), (7, 2), None),
    "tables of one position": ((2, 5, 6), (1, 3), None),
    "tables without positions": ((2, 5, 6), (3,), None),
    "tables of a batch": ((2, 3, 5, 6), (2, 1, 5, 3), None),
    "heads behind tokens": ((4, 700, 64), (700, 32), (1, 0, 2)),
    "batch behind tokens": ((3, 2, 500, 66), (500, 32), (2, 0, 1, 3)),
    "many tiles": ((2, 9000, 64), (9000, 32), None),
}


@pytest.fixture(params=SHAPES)
def problem(request, rng):
    """x, and cos and sin; the memory of x may have another order of axes."""
    shape, table, order = SHAPES[request.param]
    x = rng.standard_normal(shape, dtype=np.float32)
    if order is not None:
        x = np.ascontiguousarray(x.transpose(order)).transpose(np.argsort(order))
    angles = rng.uniform(0, 6, size=table)
    return x, np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)


@pytest.mark.parametrize("interleaved", [True, False])
def test_the_bits_are_those_of_the_algebra(problem, interleaved):
    x, cos, sin = problem
    before = x.copy()
    expected = algebra.rotary(np, x, cos, sin, interleaved=interleaved)
    actual = mha.rotary(x, cos, sin, interleaved=interleaved)
    np.testing.assert_array_equal(actual, expected)
    assert actual.dtype == expected.dtype
    assert not np.shares_memory(actual, x)
    np.testing.assert_array_equal(x, before)


@pytest.mark.parametrize("interleaved", [True, False])
def test_the_gradient_is_rotated_back(problem, interleaved, rng):
    x, cos, sin = (y.astype(np.float64) for y in problem)
    d = rng.standard_normal(x.shape)
    expected = algebra.rotary_vjp(np, x, cos, sin, d, wanted={"x"}, interleaved=interleaved)[0]
    np.testing.assert_array_equal(kernel.rotary_vjp(x, cos, sin, d, wanted={"x"}, interleaved=interleaved)[0], expected)
    _, pullback = mha.vjp(mha.rotary, x, cos, sin, interleaved=interleaved)
    np.testing.assert_array_equal(pullback(d)[0], expected)


def test_no_number_raises_a_warning(rng):
    x = rng.standard_normal((2, 6, 8))
    x[0, 1], x[1, 2] = np.nan, np.inf
    cos, sin = np.zeros((6, 4)), np.ones((6, 4))
    actual = mha.rotary(x, cos, sin, interleaved=False)
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(actual, algebra.rotary(np, x, cos, sin, interleaved=False))
    assert np.isnan(actual[0, 1]).all()
    assert np.isfinite(actual[0, 2:]).all()


def test_half_precision_and_empty_arrays_are_left_to_the_algebra():
    x, table = np.ones((2, 3, 4)), np.ones((3, 2))
    for dtype, shape, chosen in (("float32", (2, 3, 4), "tiles"), ("float16", (2, 3, 4), None), ("float64", (2, 0, 4), None)):
        x, table = np.ones(shape, dtype), np.ones((shape[1], 2), dtype)
        assert mha.explain("rotary", x, table, table, interleaved=True).kernel == chosen
        assert mha.rotary(x, table, table, interleaved=True).shape == shape
