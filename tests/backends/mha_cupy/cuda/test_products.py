"""Batched matrix products of views: correct for all strides, in few calls of cuBLAS. The host stands in for cuBLAS."""

import numpy as np
import pytest
from cuda_kernels import without_time_limits
from cuda_on_host.blas import HostBlas
from hypothesis import given
from hypothesis import strategies as st

from mha_cupy import products

small = st.integers(1, 9)
axes = st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(1, 3))


@st.composite
def views(draw, lead, rows, cols):
    """A stack of matrices with its axes in any order, steps of one or two elements, and axes that broadcast."""
    order = draw(st.permutations(range(len(lead) + 2)))
    step = draw(st.integers(1, 2))
    shape = (*(size if draw(st.booleans()) else 1 for size in lead), rows, cols)
    x = np.random.default_rng(draw(st.integers(0, 99))).normal(size=[shape[at] * step for at in order]).astype(np.float32)
    return x.transpose(np.argsort(order))[tuple(slice(None, None, step) for _ in shape)]


@without_time_limits
@given(st.data(), axes, st.tuples(small, small, small), st.sampled_from([1.0, 0.5]))
def test_products_of_views_are_right_whatever_the_strides(data, lead, sizes, alpha):
    m, k, n = sizes
    a, b = data.draw(views(lead, m, k)), data.draw(views(lead, k, n))
    buffer = np.full((*lead, m, n + 3), np.nan, dtype=np.float32)
    out = buffer[..., :n]
    blas = HostBlas()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(products, "_cublas", lambda: (blas, 0))
        products.product(a, b, out, alpha)
    np.testing.assert_allclose(out, np.broadcast_to(alpha * (a @ b), out.shape), rtol=1e-5, atol=1e-5)
    assert np.isnan(buffer[..., n:]).all(), "something was written beyond the columns of out"
    assert blas.calls <= np.prod(sorted(lead)[:2])  # the longest axis is one call
    if all(x.shape[:-2] == lead for x in (a, b)):
        assert blas.calls <= 3, "operands that need more calls must be copied into one stack"


def test_a_transposed_key_is_read_without_a_copy():
    key = np.zeros((2, 3, 7, 8), dtype=np.float32)
    turned = key.transpose(0, 1, 3, 2)
    assert products.operand(turned.shape, products.elements(turned)) == products.Operand(True, 8)
    assert products._readable(turned) is turned


def test_heads_of_a_projection_need_one_call_for_each_batch_element():
    """(b, l, h, d) seen as (b, h, l, d): no single step leads through batch and heads."""
    x = np.zeros((4, 9, 6, 8)).transpose(0, 2, 1, 3)
    shape, steps = x.shape[:2], products.elements(x)[:2]
    one = products.Operand(False, 48)
    calls = products.gemm_calls(shape, one, one, one, tuple((step, step, step) for step in steps))
    assert calls.count == 6 and len(calls.offsets) == 4


def test_heads_of_a_batched_projection_are_copied_and_need_one_call(monkeypatch):
    """32 batch elements of 12 heads: copies of both operands are two launches; without them there would be 12 calls."""
    rng, blas, shape = np.random.default_rng(0), HostBlas(), (32, 5, 12, 8)
    monkeypatch.setattr(products, "_cublas", lambda: (blas, 0))
    query, key = (rng.normal(size=shape).astype(np.float32).transpose(0, 2, 1, 3) for _ in range(2))
    out = np.empty((32, 12, 5, 5), dtype=np.float32)
    products.product(query, key.swapaxes(-1, -2), out)
    np.testing.assert_allclose(out, query @ key.swapaxes(-1, -2), rtol=1e-5, atol=1e-5)
    assert blas.mode == 0, "the math mode was not restored for CuPy"
    assert blas.calls == 1 and products._operand(products._as_stack(key.swapaxes(-1, -2))).transposed
    monkeypatch.setattr(products, "_SMALL", query.size - 1)  # like a cache of many keys, which is too large to copy
    products.product(query, key.swapaxes(-1, -2), out)
    assert blas.calls == 1 + 12
