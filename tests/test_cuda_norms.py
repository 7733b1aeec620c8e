"""Norms of mha_cupy, with their CUDA run on the host. Nothing here runs CuPy."""

import numpy as np
import pytest

import cuda_on_host
from cuda_ops import DTYPES, assert_rounded_once, layer_norm, needs_compiler, rms_norm, wide
from mha_core.conformance.oracle import reference
from mha_cupy.norms import norm

pytestmark = needs_compiler
each_dtype = pytest.mark.parametrize("dtype", DTYPES)
NORMS = {"layer_norm": layer_norm, "rms_norm": rms_norm}


def magnitude(y, weight, bias):
    """Error of mean, variance and scaling: a few roundings each, for rows whose mean is not large."""
    return 16 * (np.abs(y - (0 if bias is None else bias)) + (1 if weight is None else np.abs(weight))) + np.abs(y)


def assert_normed(got, x, weight=None, bias=None, *, eps=1e-5, op="layer_norm"):
    parameters = [wide(p) for p in ((weight, bias) if op == "layer_norm" else (weight,))]
    exact = getattr(reference, op)(wide(x), *parameters, eps=eps)
    assert_rounded_once(op, got, exact, magnitude(exact, wide(weight), wide(bias)))


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("length", [1, 2, 31, 33, 255, 264, 1000, 4096, 8200, 20000])
def test_rows_of_any_length(dtype, rng, length):
    x = rng.normal(size=(3, length)).astype(DTYPES[dtype])
    weight, bias = (rng.normal(size=length).astype(x.dtype) for _ in range(2))
    assert_normed(layer_norm(x, weight, bias), x, weight, bias)
    assert_normed(rms_norm(x, weight), x, weight, op="rms_norm")


@each_dtype
@pytest.mark.parametrize("count", [1, 7, 8, 9, 17])
def test_any_number_of_rows(dtype, rng, count):
    """Eight short rows share a thread block; the last one may have fewer, and must write nothing beyond them."""
    x = rng.normal(size=(count, 16)).astype(DTYPES[dtype])
    room = np.full((count + 9, 16), 7, dtype=x.dtype)
    cuda_on_host.run(norm(x, None, None, room[:count], eps=1e-5))
    assert_normed(room[:count], x)
    assert (room[count:] == 7).all()


@each_dtype
@pytest.mark.parametrize("length", [16, 13, 40000])
def test_bias_and_residual_are_added_and_the_sum_is_written(dtype, rng, length):
    x, residual = (rng.normal(size=(3, length)).astype(DTYPES[dtype]) for _ in range(2))
    b, weight = (rng.normal(size=(1, length)).astype(DTYPES[dtype]) for _ in range(2))
    for more in ({"b": b, "residual": residual}, {"residual": residual[::-1]}, {"b": b}):
        exact = wide(x) + sum(wide(y) for y in more.values())
        for total in (np.full_like(x, np.nan), None):
            out = np.full_like(x, np.nan)
            cuda_on_host.run(norm(x, weight, None, out, eps=0.1, total=total, **more))
            assert_normed(out, exact, wide(weight), eps=0.1)
            if total is not None:
                assert_rounded_once("sum", total, exact, 4 + 0 * exact)


@each_dtype
@pytest.mark.parametrize("op", NORMS)
def test_strides_do_not_matter(dtype, rng, op):
    whole = rng.normal(size=(6, 4, 24)).astype(DTYPES[dtype])
    views = {
        "steps between rows": whole[:, 0],
        "rows apart by an odd number": whole[:, 0, 1:18],
        "backwards": whole[::-1, 1],
        "the same row again": np.broadcast_to(whole[0, 0], (5, 24)),
        "permuted": whole.transpose(1, 0, 2),
        "a stepped last axis": whole[:, :, ::2],
    }
    for name, x in views.items():
        before = x.copy()
        np.testing.assert_array_equal(NORMS[op](x), NORMS[op](x.copy()), err_msg=name)
        np.testing.assert_array_equal(x, before, err_msg=name)
    weight = whole[:, 0, 0]
    assert_normed(NORMS[op](whole[0, :, :6], weight), whole[0, :, :6], weight, op=op)


@each_dtype
def test_constant_rows_give_the_bias_and_a_single_element_is_its_mean(dtype, rng):
    bias = rng.normal(size=40).astype(DTYPES[dtype])
    for value in (0, 3):
        np.testing.assert_array_equal(layer_norm(np.full((2, 40), value, dtype=bias.dtype), None, bias), [bias, bias])
    assert (rms_norm(np.zeros((2, 40), dtype=bias.dtype)) == 0).all()
    assert (layer_norm(bias[:, None]) == 0).all()
    assert_normed(rms_norm(bias[:, None], eps=0.5), bias[:, None], eps=0.5, op="rms_norm")


@each_dtype
def test_eps_is_inside_the_square_root(dtype, rng):
    x = rng.normal(size=(3, 20)).astype(DTYPES[dtype])
    for op, function in NORMS.items():
        for eps in (0.0, 1e-5, 4.0):
            assert_normed(function(x, eps=eps), x, eps=eps, op=op)


def test_large_float16_numbers_do_not_overflow(rng):
    x = (60000 * rng.uniform(-1, 1, size=(3, 600))).astype(np.float16)
    for op, function in NORMS.items():
        assert_normed(function(x), x, op=op)


@pytest.mark.parametrize("length", [512, 40000])
def test_a_large_mean_does_not_spoil_the_variance(rng, length):
    """The mean of squares minus the squared mean would be wrong by 1e-2 here."""
    x = (1000 + rng.normal(size=(3, length))).astype(np.float32)
    np.testing.assert_allclose(layer_norm(x), reference.layer_norm(wide(x)), rtol=0, atol=32 * 1000 * 2.0**-24)


@each_dtype
@pytest.mark.parametrize("length", [24, 600])
def test_nan_and_infinity_stay_in_their_rows(dtype, rng, length):
    x = rng.normal(size=(9, length)).astype(DTYPES[dtype])
    for op, function in NORMS.items():
        clean = function(x)
        for poison in (np.nan, np.inf):
            y = x.copy()
            y[4, 5] = poison
            got = function(y)
            np.testing.assert_array_equal(np.delete(got, 4, axis=0), np.delete(clean, 4, axis=0))
            assert np.isnan(got[4].astype(np.float32)).any(), op
