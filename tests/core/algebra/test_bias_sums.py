"""Gradients of biases summed over blocks, against the sum over all pairs at once."""

from itertools import product

import numpy as np
import pytest

import mha_core as mha
from mha_core.ops.attend import prepare
from mha_core.plugin import bias_by_distance, gradient_by_distance, score_sum

BATCH, H, L, S = (2, 3), 4, 10, 13
ROWS, COLS, HEADS = (range(6), range(6, 10)), (range(3), range(3, 11)), (range(2), range(2, 4))
SHAPES = [(*BATCH, H, L, S), (3, 1, L, S), (2, 1, H, 1, S), (H, L, 1), (L, S), (S,), ()]
MASK = mha.prefix(11)


def problem(bias):
    rng = np.random.default_rng(0)
    query, key = (rng.normal(size=(*BATCH, H, n, 2)).astype(np.float32) for n in (L, S))
    return prepare(query, key, key, bias=bias, query_offset=2, mask=MASK)[1]


def d_scores():
    return np.random.default_rng(1).normal(size=(*BATCH, H, L, 11)).astype(np.float32)


@pytest.mark.parametrize("by_element", [True, False])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_gradient_of_an_array_is_summed_where_it_is_shared(shape, by_element):
    bias, d = np.random.default_rng(2).normal(size=shape).astype(np.float32), d_scores()
    p, exact = problem(bias), np.zeros((*BATCH, H, L, S), np.float32)
    exact[..., :11] = d
    total = score_sum(p)
    for batch, heads, rows, cols in product(np.ndindex(*BATCH) if by_element else range(2), HEADS, ROWS, COLS):
        at = (*batch, heads, rows, cols) if by_element else (batch, range(3), heads, rows, cols)
        total.add(at, d[tuple(slice(x.start, x.stop) if isinstance(x, range) else x for x in at)])
    lead = exact.ndim - len(shape)
    wide = tuple(axis for axis in range(exact.ndim) if axis < lead or shape[axis - lead] == 1)
    np.testing.assert_allclose(total.whole(), exact.sum(wide).reshape(shape), rtol=0, atol=1e-4)
    assert total.whole().dtype == np.float32


@pytest.mark.parametrize("last_key_first", [True, False])
def test_the_gradient_of_a_table_is_summed_by_distance(last_key_first):
    table = np.random.default_rng(2).normal(size=(8, H)).astype(np.float32)
    p, d = problem(mha.relative_bias(table, bidirectional=True, max_distance=9)), d_scores()
    exact = p.bias.sum(np)
    exact.add(p.grid(range(L), range(11)), d)
    total = score_sum(p, last_key_first=last_key_first)
    for batch, heads, rows, cols in product(np.ndindex(*BATCH), HEADS, ROWS, COLS):
        block = d[(*batch, *(slice(x.start, x.stop) for x in (heads, rows, cols)))]
        total.add((*batch, heads, rows, cols), block[..., ::-1] if last_key_first else block)
    np.testing.assert_allclose(total.whole(), exact.whole(None), rtol=0, atol=1e-4)


def test_a_bias_by_distance_and_its_gradient_are_adjoint():
    """The sum of a bias times its gradient is that of all its numbers times those of the sums."""
    table = np.random.default_rng(2).normal(size=(8, H)).astype(np.float32)
    p = problem(mha.relative_bias(table, bidirectional=False, max_distance=9))
    sums = np.random.default_rng(3).normal(size=(H, L + 11 - 1)).astype(np.float32)
    assert np.sum(bias_by_distance(p)[..., 0, :] * sums) == pytest.approx(
        np.sum(table * gradient_by_distance(p, sums)), abs=1e-4
    )
