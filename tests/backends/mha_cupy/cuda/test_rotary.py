"""Rotary embedding of mha_cupy, with its CUDA run on the host."""

import numpy as np
import pytest
from cuda_kernels import DTYPES, assert_rounded_once, each_dtype, needs_compiler, wide

from mha_conformance.oracle import reference
from mha_cupy.rotary import _merged_axes, rotary

pytestmark = needs_compiler
each_kind = pytest.mark.parametrize("interleaved", [False, True], ids=["halves", "interleaved"])


def assert_rotated(x, cos, sin, interleaved):
    shape = (*x.shape[:-1], cos.shape[-1])
    tables = [np.broadcast_to(wide(table), shape) for table in (cos, sin)]
    exact = reference.rotary(wide(x), *tables, interleaved=interleaved)
    got = rotary(x, cos, sin, interleaved=interleaved)
    assert_rounded_once("rotary", got, exact, 4 * np.abs(wide(x)).max(axis=-1, keepdims=True) + 0 * exact)
    rotated = 2 * cos.shape[-1]
    np.testing.assert_array_equal(got[..., rotated:], x[..., rotated:])


def angles(rng, dtype, *shape):
    made = 3 * rng.normal(size=shape)
    return np.cos(made).astype(DTYPES[dtype]), np.sin(made).astype(DTYPES[dtype])


@each_dtype
@each_kind
@pytest.mark.parametrize(("width", "half"), [(64, 32), (64, 16), (6, 3), (7, 2), (9, 1), (2, 1), (20, 10)])
def test_features_beyond_the_pairs_pass_through(dtype, rng, normal, interleaved, width, half):
    assert_rotated(normal(2, 3, 5, width, dtype=DTYPES[dtype]), *angles(rng, dtype, 5, half), interleaved)


@each_dtype
@each_kind
def test_tables_broadcast_and_strides_do_not_matter(dtype, rng, normal, interleaved):
    heads = normal(2, 5, 3, 24, dtype=DTYPES[dtype]).swapaxes(1, 2)  # of (batch, length, heads, head_dim)
    for shape in [(8,), (5, 8), (1, 1, 5, 8), (2, 1, 5, 8), (3, 1, 8), (2, 3, 5, 8), (2, 1, 1, 8)]:
        assert_rotated(heads, *angles(rng, dtype, *shape), interleaved)
    cos, _ = angles(rng, dtype, 5, 8)
    _, sin = angles(rng, dtype, 2, 1, 1, 8)
    assert_rotated(heads, cos, sin, interleaved)
    cos, sin = angles(rng, dtype, 9, 16)
    assert_rotated(heads[:, :, ::-1, 1:22], cos[::2, 3:11], sin[4:, :8], interleaved)


@each_kind
def test_more_axes_than_the_kernel_supports(rng, normal, interleaved):
    x = normal(2, 4, 3, 6, 12).transpose(0, 2, 1, 3, 4)[:, :, :, ::2]
    (cos, _), (_, sin) = angles(rng, "float32", 2, 1, 1, 1, 4), angles(rng, "float32", 3, 1, 3, 4)
    assert len(_merged_axes(x, cos, sin)) > 3
    assert_rotated(x, cos, sin, interleaved)


@each_dtype
@each_kind
def test_angle_0_changes_nothing_and_a_quarter_turn_swaps_bit_for_bit(dtype, normal, interleaved):
    x = normal(300, 6, dtype=DTYPES[dtype])
    one, zero = np.ones((300, 3), dtype=x.dtype), np.zeros((300, 3), dtype=x.dtype)
    np.testing.assert_array_equal(rotary(x, one, zero, interleaved=interleaved), x)
    swapped = rotary(x, zero, one, interleaved=interleaved)
    first, other = ([0, 2, 4], [1, 3, 5]) if interleaved else ([0, 1, 2], [3, 4, 5])
    np.testing.assert_array_equal(swapped[:, first], -x[:, other])
    np.testing.assert_array_equal(swapped[:, other], x[:, first])


def test_nan_stays_in_its_pair(rng, normal):
    x = normal(4, 16)
    cos, sin = angles(rng, "float32", 4, 8)
    clean = rotary(x, cos, sin, interleaved=False)
    x[2, 3] = np.nan
    got = rotary(x, cos, sin, interleaved=False)
    where = np.isnan(got)
    assert sorted(zip(*np.nonzero(where), strict=True)) == [(2, 3), (2, 11)]
    np.testing.assert_array_equal(got[~where], clean[~where])


def test_axes_with_matching_strides_are_merged():
    x, table = np.zeros((2, 3, 4, 5, 8)), np.zeros((5, 4))
    assert _merged_axes(x, table, table) == [(24, (320, 0, 0)), (5, (64, 32, 32))]
    whole = np.zeros((2, 3, 4, 5, 4))
    assert _merged_axes(x, whole, whole) == [(120, (64, 32, 32))]
    assert _merged_axes(x[:, :1], table, table) == [(2, (3840, 0, 0)), (4, (320, 0, 0)), (5, (64, 32, 32))]
