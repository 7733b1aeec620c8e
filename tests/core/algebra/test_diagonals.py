"""Places of distances, and sums over the pairs at each distance, against loops over pairs."""

import numpy as np
import pytest

from mha_core.algebra.diagonals import keys_by_distance, place_of_pair, places_of_block, skewed


@pytest.mark.parametrize(("queries", "keys"), [(1, range(4, 5)), (3, range(5)), (6, range(2, 4))])
def test_a_place_holds_the_distance_of_its_pairs(queries, keys):
    by_distance = keys_by_distance(keys, queries)
    assert len(by_distance) == queries + len(keys) - 1
    for row in range(queries):
        for col in range(len(keys)):  # key - query in the caller's indices is that of query 0 and the key at the place
            assert by_distance[place_of_pair(len(keys), row, col)] == keys[col] - row


def test_a_block_has_successive_places():
    rows, cols = range(2, 5), range(1, 7)
    places = places_of_block(9, rows, cols)
    assert {*range(places.start, places.stop)} == {place_of_pair(9, row, col) for row in rows for col in cols}


@pytest.mark.parametrize("shape", [(1, 1), (1, 4), (4, 1), (2, 3, 5), (2, 5, 3)])
def test_columns_are_antidiagonals(shape):
    x = np.random.default_rng(0).normal(size=shape)
    rows, cols = shape[-2:]
    expected = np.zeros((*shape[:-1], rows + cols - 1))
    for row in range(rows):
        expected[..., row, row : row + cols] = x[..., row, :]
    np.testing.assert_array_equal(skewed(np, x), expected)
