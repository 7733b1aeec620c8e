"""Dropout by a seed in the oracle, and in the algebra, which is written apart from it."""

import numpy as np
import pytest

import mha_core as mha
from mha_conformance.oracle.dropout import kept_by_seed
from mha_core.algebra.dropout import kept_elements, named_seed


@pytest.mark.parametrize("seed", [0, 7, 2**31, 2**32 - 1])
@pytest.mark.parametrize("shape", [(1, 1), (3, 5), (70, 33), (0, 4), (4, 0)])
def test_kept_elements_are_those_of_the_algebra(seed, shape):
    expected = kept_elements(np, np.ones(shape), 0.3, seed)
    np.testing.assert_array_equal(kept_by_seed(shape, 0.3, seed), expected)
    expected = kept_elements(np, np.ones(shape), 0.3, named_seed(seed, "feed_forward"))
    np.testing.assert_array_equal(kept_by_seed(shape, 0.3, seed, "feed_forward"), expected)


@pytest.mark.parametrize("shape", [(2, 5, 33), (2, 3, 1, 4)])
def test_kept_weights_are_those_of_the_algebra(shape):
    *stack, keys = shape
    query, key = np.zeros((*stack, 8)), np.zeros((*stack[:-1], keys, 8))
    weights = mha.attention_weights(query, key, weight_dropout=mha.weight_dropout(0.4, seed=11))
    places = (int(np.prod(shape[:-2])), *shape[-2:])
    np.testing.assert_array_equal(weights != 0, kept_by_seed(places, 0.4, 11).reshape(shape))


def test_a_share_is_kept_that_is_one_minus_the_rate():
    assert kept_by_seed((4, 200, 200), 0.3, 5).mean() == pytest.approx(0.7, abs=0.01)
    assert kept_by_seed((4, 200, 200), 0.0, 5).all()
