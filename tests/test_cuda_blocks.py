"""How mha_cupy cuts a problem: every pair that may be seen in one block, no block too large; and what it asks of cuBLAS."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cuda_on_host.blas import HostBlas
from mha_cupy import products
from mha_cupy.blocks import BUSIEST, PARTS, WIDEST, blocks, reached, shape_of_block

small = st.integers(1, 9)
limit = st.none() | st.integers(-12, 12)


@given(
    small, small, st.integers(1, 3), st.integers(1, 40), st.integers(1, 40), limit, limit, st.integers(1, 200), st.booleans()
)
def test_every_pair_of_a_band_is_in_one_block(batch, heads, groups, rows, cols, low, high, scores, computed):
    copies = batch * heads * groups if computed else 0
    times = np.zeros((batch, heads, rows, cols), dtype=int)
    for block in blocks(batch, heads, groups, rows, cols, (low, high), copies=copies, scores=scores):
        for part in block.cols:
            times[np.ix_(block.batch, block.heads, block.rows, part)] += 1
            count = len(block.batch) * len(block.heads) * groups * len(block.rows) * len(part)
            assert count <= scores or len(block.batch) * len(block.heads) * len(block.rows) == 1
            if computed:
                assert copies * len(block.rows) * len(part) <= scores or len(block.rows) == 1
    q, k = np.arange(rows)[:, None], np.arange(cols)
    everywhere = np.ones((rows, cols), dtype=bool)
    seen = everywhere & (True if low is None else k - q >= low) & (True if high is None else k - q <= high)
    assert (times <= 1).all() and (times[..., seen] == 1).all()


@pytest.mark.parametrize("length", [4096, 32768])
def test_a_narrow_band_takes_few_scores(length):
    taken = sum(
        len(block.batch) * len(block.heads) * len(block.rows) * len(part)
        for block in blocks(1, 1, 1, length, length, (-255, 0))
        for part in block.cols
    )
    assert taken < length * 1300


@pytest.mark.parametrize(("batch", "heads", "length"), [(32, 16, 512), (1, 16, 2048), (1, 16, 8192)])
def test_a_large_problem_takes_no_more_launches_than_its_memory_asks(batch, heads, length):
    """A block costs Python the same time, and a GPU is done with a small one before the next is launched."""
    every = list(blocks(batch, heads, 1, length, length, (None, None)))
    sizes = [len(block.batch) * len(block.heads) * len(block.rows) * length for block in every]
    total = batch * heads * length**2
    assert max(sizes) <= max(total // PARTS, 1) and len(every) == max(PARTS, total // BUSIEST)


@given(st.integers(1, WIDEST))
def test_a_row_has_threads_for_all_its_keys_and_not_many_more(num_cols):
    threads, each = shape_of_block(num_cols)
    assert threads * each >= num_cols and threads in (32, 64, 128, 256, 512, 1024) and each in (1, 2, 4, 8, 16)
    assert threads * each < 2 * max(32, num_cols)


def test_reached():
    assert reached(range(4, 8), 100, (-2, 0)) == range(2, 8)
    assert reached(range(4, 8), 5, (None, 0)) == range(5)
    assert len(reached(range(4, 8), 5, (9, None))) == 0


axes = st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(1, 3))


@st.composite
def views(draw, lead, rows, cols):
    """A stack of matrices, as it may lie: axes in any order, steps of more than one, and axes that broadcast."""
    order = draw(st.permutations(range(len(lead) + 2)))
    step = draw(st.integers(1, 2))
    shape = (*(size if draw(st.booleans()) else 1 for size in lead), rows, cols)
    x = np.random.default_rng(draw(st.integers(0, 99))).normal(size=[shape[at] * step for at in order]).astype(np.float32)
    return x.transpose(np.argsort(order))[tuple(slice(None, None, step) for _ in shape)]


@given(st.data(), axes, st.tuples(small, small, small), st.sampled_from([1.0, 0.5]))
def test_products_of_views_are_right_however_they_lie(data, lead, sizes, alpha):
    m, k, n = sizes
    a, b = data.draw(views(lead, m, k)), data.draw(views(lead, k, n))
    buffer = np.full((*lead, m, n + 3), np.nan, dtype=np.float32)
    out = buffer[..., :n]
    blas = HostBlas()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(products, "_cublas", lambda: (blas, 0))
        products.product(a, b, out, alpha)
    np.testing.assert_allclose(out, np.broadcast_to(alpha * (a @ b), out.shape), rtol=1e-5, atol=1e-5)
    assert np.isnan(buffer[..., n:]).all(), "beyond its columns nothing is written"
    assert blas.calls <= np.prod(sorted(lead)[:2])  # the longest axis goes in one call
    if all(x.shape[:-2] == lead for x in (a, b)):
        assert blas.calls <= 3, "what would take more is copied, and then is one stack"


def test_a_transposed_key_is_read_as_it_lies():
    key = np.zeros((2, 3, 7, 8), dtype=np.float32)
    turned = key.transpose(0, 1, 3, 2)
    assert products.operand(turned.shape, products.elements(turned)) == products.Operand(True, 8)
    assert products._readable(turned) is turned


def test_heads_of_a_projection_take_one_call_for_each_batch_element():
    """(b, l, h, d) as (b, h, l, d): the batch and the heads have no common step."""
    x = np.zeros((4, 9, 6, 8)).transpose(0, 2, 1, 3)
    shape, steps = x.shape[:2], products.elements(x)[:2]
    one = products.Operand(False, 48)
    found = products.plan(shape, one, one, one, tuple((step, step, step) for step in steps))
    assert found.count == 6 and len(found.offsets) == 4


def test_heads_of_projections_in_a_batch_are_copied_and_take_one_call(monkeypatch):
    """12 heads apart from 32 batch elements: copies of both operands are two launches, and calls would be 12."""
    rng, blas, shape = np.random.default_rng(0), HostBlas(), (32, 5, 12, 8)
    monkeypatch.setattr(products, "_cublas", lambda: (blas, 0))
    query, key = (rng.normal(size=shape).astype(np.float32).transpose(0, 2, 1, 3) for _ in range(2))
    out = np.empty((32, 12, 5, 5), dtype=np.float32)
    products.product(query, key.swapaxes(-1, -2), out)
    np.testing.assert_allclose(out, query @ key.swapaxes(-1, -2), rtol=1e-5, atol=1e-5)
    assert blas.mode == 0, "what CuPy multiplies later is multiplied as before"
    assert blas.calls == 1 and products._operand(products._packed(key.swapaxes(-1, -2))).transposed
    monkeypatch.setattr(products, "_SMALL", query.size - 1)  # as a cache of many keys would be, whose copy is dear
    products.product(query, key.swapaxes(-1, -2), out)
    assert blas.calls == 1 + 12
