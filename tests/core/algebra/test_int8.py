"""The mathematics of int8 weights: the same integers on every backend, sums that are exact, rows that are independent."""

import pickle

import numpy as np
import pytest

import mha_core as mha
from mha_core.algebra import int8


def python_integers(row, factor):
    """Return the integers of a row of float32 numbers by Python's own rounding, ties to even."""
    return [round(float(np.float32(x) * factor)) for x in row]


def test_integers_and_scales_are_those_of_the_definition(backend, rng):
    x = rng.normal(size=(7, 33)).astype(np.float32)
    integers, scale = (backend.to_numpy(each) for each in int8.rounded(backend.xp, backend.from_numpy(x), -1))
    top = np.abs(x).max(axis=1)
    assert integers.tolist() == [python_integers(*pair) for pair in zip(x, np.float32(127) / top, strict=True)]
    np.testing.assert_array_equal(scale[:, 0], top / np.float32(127))
    assert integers.dtype == scale.dtype == np.float32 and np.abs(integers).max() == 127


def test_ties_are_rounded_to_even(backend):
    x = backend.from_numpy(np.asarray([[127, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5]], dtype=np.float32))
    integers, _ = int8.rounded(backend.xp, x, -1)
    assert backend.to_numpy(integers).tolist() == [[127, 0, 2, 2, 0, -2, -2]]


@pytest.mark.parametrize("inputs", [1, 64, 1000])
def test_sums_of_products_are_exact(backend, inputs):
    """Of at most 1040 largest products, which fit 24 bits: here the last weight is 1, and an inexact sum would lose it."""
    values = np.full((inputs, 2), 127, dtype=np.int8)
    values[-1] = [1, -127]
    x = np.full((1, inputs), 127, dtype=np.float32)
    w = mha.Int8Weight(*map(backend.from_numpy, (values, np.ones(2, dtype=np.float32))))
    exact = [127.0 * int(column.sum(dtype=np.int64)) for column in values.T]
    assert backend.to_numpy(mha.linear(backend.from_numpy(x), w)).tolist() == [exact]


def test_a_large_number_makes_the_steps_of_its_group_coarse_and_no_others(backend):
    x = np.full((1, 200), 0.75, dtype=np.float32)
    x[0, 70] = 1e6
    w = mha.Int8Weight(*map(backend.from_numpy, (np.eye(200, dtype=np.int8), np.ones(200, dtype=np.float32))))
    got = backend.to_numpy(mha.linear(backend.from_numpy(x), w))[0]
    np.testing.assert_allclose(got[70], 1e6, rtol=1e-6)
    assert (got[64:70] == 0).all() and (got[71:128] == 0).all()
    np.testing.assert_allclose(got[[*range(64), *range(128, 200)]], 0.75, rtol=1e-6)


def test_all_backends_return_the_same_bits(backend, rng):
    x, w, b = (rng.normal(size=size).astype(np.float32) for size in ((5, 40), (40, 24), (24,)))
    expected = mha.linear(x, mha.quantize_weight(w), b)
    got = mha.linear(backend.from_numpy(x), mha.quantize_weight(backend.from_numpy(w)), backend.from_numpy(b))
    np.testing.assert_array_equal(backend.to_numpy(got), expected)


def test_the_result_is_near_that_of_the_weight(rng):
    x, w = rng.normal(size=(50, 300)).astype(np.float32), rng.normal(size=(300, 20)).astype(np.float32)
    got, exact = mha.linear(x, mha.quantize_weight(w)), x.astype(np.float64) @ w
    assert 0.001 < np.sqrt(np.mean((got - exact) ** 2) / np.mean(exact**2)) < 0.015


@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
def test_a_row_that_is_not_finite_is_nan_and_no_other(backend, number):
    x = np.ones((3, 2000), dtype=np.float32)
    x[1, 1500] = number
    w = mha.quantize_weight(backend.from_numpy(np.ones((2000, 2), dtype=np.float32)))
    got = backend.to_numpy(mha.linear(backend.from_numpy(x), w))
    assert np.isnan(got).tolist() == [[False] * 2, [True] * 2, [False] * 2]


@pytest.mark.parametrize("number", [0.0, 1e-44, 1e-37])
def test_rows_and_columns_of_numbers_near_zero_are_zero(backend, number):
    tiny, one = (np.full((2, 2), each, dtype=np.float32) for each in (number, 1))
    for x, w in ((tiny, one), (one, tiny)):
        got = mha.linear(backend.from_numpy(x), mha.quantize_weight(backend.from_numpy(w)), backend.from_numpy(one[0]))
        assert backend.to_numpy(got).tolist() == [[1, 1], [1, 1]]


def test_a_column_that_is_not_finite_is_nan():
    w = mha.quantize_weight(np.asarray([[1.0, np.nan, 1.0], [2.0, 1.0, np.inf]]))
    assert w.values.tolist() == [[64, 0, 0], [127, 0, 0]] and np.isnan(w.scale).tolist() == [False, True, True]
    assert np.isnan(mha.linear(np.ones((1, 2)), w)).tolist() == [[False, True, True]]


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_the_result_has_the_dtype_of_x(backend, rng, dtype):
    if not hasattr(backend.xp, dtype):
        pytest.skip(f"{backend.name} has no {dtype}")
    arrays = (rng.normal(size=size).astype(dtype) for size in ((3, 40), (40, 5), (5,)))
    x, w, b = map(backend.from_numpy, arrays)
    got, exact = mha.linear(x, mha.quantize_weight(w), b), mha.linear(x, w, b)
    assert got.dtype == x.dtype
    np.testing.assert_allclose(backend.to_numpy(got), backend.to_numpy(exact), rtol=0, atol=0.3)


def test_a_weight_is_pickled_without_what_kernels_keep():
    w = mha.quantize_weight(np.eye(3))
    w.cache["a kernel"] = lambda: None  # which cannot be pickled
    again = pickle.loads(pickle.dumps(w))
    assert (again.values == w.values).all() and (again.scale == w.scale).all() and again.cache == {}


def test_every_library_divides_as_numpy_does(backend, rng):
    """In torch a number divided by an array is the product with its rounded inverse: some integers would differ."""
    x = rng.normal(size=(1 << 16, 16)).astype(np.float32)
    arrays = int8.rounded(backend.xp, backend.from_numpy(x), -1)
    for actual, expected in zip(arrays, int8.rounded(np, x, -1), strict=True):
        np.testing.assert_array_equal(backend.to_numpy(actual), expected)
