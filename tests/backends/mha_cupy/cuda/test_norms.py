"""Norms of mha_cupy, with their CUDA run on the host: each result is rounded once, and rows do not touch."""

import cuda_on_host
import numpy as np
import pytest
from cuda_kernels import DTYPES, assert_rounded_once, each_dtype, needs_compiler, wide

from mha_conformance.oracle import reference
from mha_cupy import norms

pytestmark = needs_compiler


def layer_norm(x, weight=None, bias=None, *, eps=1e-5):
    return norms.layer_norm(x, weight, bias, eps=eps)


def rms_norm(x, weight=None, *, eps=1e-5):
    return norms.rms_norm(x, weight, eps=eps)


NORMS = {"layer_norm": layer_norm, "rms_norm": rms_norm}


def assert_normed(op, got, x, weight=None, bias=None, *, eps=1e-5):
    """Errors of mean, variance and scaling are a few roundings each, for rows whose mean is not large."""
    parameters = [wide(p) for p in ((weight, bias) if op == "layer_norm" else (weight,))]
    exact = getattr(reference, op)(wide(x), *parameters, eps=eps)
    scaled = np.abs(exact - (0 if bias is None else wide(bias))) + (1 if weight is None else np.abs(wide(weight)))
    assert_rounded_once(op, got, exact, 16 * scaled + np.abs(exact))


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("length", [1, 2, 31, 33, 255, 264, 1000, 4096, 8200, 20000])
def test_rows_of_any_length(dtype, normal, length):
    x, weight, bias = (normal(*shape, dtype=DTYPES[dtype]) for shape in ((3, length), (length,), (length,)))
    assert_normed("layer_norm", layer_norm(x, weight, bias), x, weight, bias)
    assert_normed("rms_norm", rms_norm(x, weight), x, weight)


@each_dtype
@pytest.mark.parametrize("count", [1, 7, 8, 9, 17])
def test_any_number_of_rows(dtype, normal, count):
    """Eight short rows share a thread block; the last one may have fewer, and must write nothing beyond them."""
    x = normal(count, 16, dtype=DTYPES[dtype])
    room = np.full((count + 9, 16), 7, dtype=x.dtype)
    cuda_on_host.run(norms.norm(x, None, None, room[:count], eps=1e-5))
    assert_normed("layer_norm", room[:count], x)
    assert (room[count:] == 7).all()


@each_dtype
@pytest.mark.parametrize("length", [16, 13, 40000])
def test_bias_and_residual_are_added_and_the_sum_is_written(dtype, normal, length):
    x, residual, b, weight = (normal(rows, length, dtype=DTYPES[dtype]) for rows in (3, 3, 1, 1))
    for more in ({"b": b, "residual": residual}, {"residual": residual[::-1]}, {"b": b}):
        exact = wide(x) + sum(wide(y) for y in more.values())
        for total in (np.full_like(x, np.nan), None):
            out = np.full_like(x, np.nan)
            cuda_on_host.run(norms.norm(x, weight, None, out, eps=0.1, total=total, **more))
            assert_normed("layer_norm", out, exact, wide(weight), eps=0.1)
            if total is not None:
                assert_rounded_once("sum", total, exact, 4 + 0 * exact)


@each_dtype
@pytest.mark.parametrize("op", NORMS)
def test_strides_and_eps(dtype, normal, op):
    norm, whole = NORMS[op], normal(6, 4, 24, dtype=DTYPES[dtype])
    views = {
        "steps between rows": whole[:, 0],
        "rows apart by an odd number": whole[:, 0, 1:18],
        "backwards": whole[::-1, 1],
        "the same row again": np.broadcast_to(whole[0, 0], (5, 24)),
        "permuted": whole.transpose(1, 0, 2),
        "a stepped last axis": whole[:, :, ::2],
    }
    for name, x in views.items():
        np.testing.assert_array_equal(norm(x), norm(x.copy()), err_msg=name)
    x, weight = whole[0, :, :6], whole[:, 0, 0]
    for eps in (0.0, 1e-5, 4.0):
        assert_normed(op, norm(x, weight, eps=eps), x, weight, eps=eps)


@each_dtype
def test_constant_rows_give_the_bias_and_a_single_element_is_its_mean(dtype, normal):
    bias = normal(40, dtype=DTYPES[dtype])
    for value in (0, 3):
        np.testing.assert_array_equal(layer_norm(np.full((2, 40), value, dtype=bias.dtype), None, bias), [bias, bias])
    assert (rms_norm(np.zeros((2, 40), dtype=bias.dtype)) == 0).all()
    assert (layer_norm(bias[:, None]) == 0).all()
    assert_normed("rms_norm", rms_norm(bias[:, None], eps=0.5), bias[:, None], eps=0.5)


@pytest.mark.parametrize("length", [512, 40000])
def test_a_large_mean_does_not_spoil_the_variance(normal, length):
    """The mean of squares minus the squared mean would be wrong by 1e-2 here."""
    x = 1000 + normal(3, length)
    np.testing.assert_allclose(layer_norm(x), reference.layer_norm(wide(x)), rtol=0, atol=32 * 1000 * 2.0**-24)


@each_dtype
@pytest.mark.parametrize("op", NORMS)
@pytest.mark.parametrize("length", [24, 600])
def test_nan_and_infinity_stay_in_their_rows(dtype, normal, op, length):
    x = normal(9, length, dtype=DTYPES[dtype])
    clean = NORMS[op](x)
    for poison in (np.nan, np.inf):
        x[4, 5] = poison
        got = NORMS[op](x)
        np.testing.assert_array_equal(np.delete(got, 4, axis=0), np.delete(clean, 4, axis=0))
        assert np.isnan(got[4].astype(np.float32)).any()
