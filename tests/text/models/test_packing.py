"""Texts are packed into matrices of about one size, which threads can share evenly."""

from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mha_text.models.packing import SHARE, TOKENS, places, sorted_batches


def batches(lengths):
    """The lengths in each batch, after checking that each text is there once, longest first."""
    order, batches_of_lengths = sorted_batches(lengths, lambda length: length)
    assert [lengths[at] for at in order] == list(chain(*batches_of_lengths)) == sorted(lengths, reverse=True)
    assert [order[at] for at in places(order)] == list(range(len(lengths)))
    return batches_of_lengths


@given(st.lists(st.integers(0, 2 * TOKENS), max_size=60))
def test_a_batch_is_within_the_limit_or_one_text(lengths):
    for batch in batches(lengths):
        assert batch
        assert sum(batch) <= TOKENS or len(batch) == 1


@given(st.lists(st.integers(1, TOKENS // 16), min_size=1, max_size=400))
def test_batches_of_short_texts_can_be_shared_evenly(lengths):
    sums = [sum(batch) for batch in batches(lengths)]
    if sum(lengths) <= TOKENS:
        assert len(sums) == 1
    else:
        assert max(sums) - min(sums) <= TOKENS // 8, "two texts"
        assert len(sums) % SHARE == 0 or sum(sums) > len(sums) * TOKENS * 15 / 16, "or one more, since none was full"


@pytest.mark.parametrize(
    ("lengths", "expected"),
    [
        ([], []),
        ([0, 0], [0]),
        ([TOKENS], [TOKENS]),
        ([3 * TOKENS, 30, 20], [3 * TOKENS, 50]),
        ([TOKENS // 64] * 65, [16 * TOKENS // 64] * 3 + [17 * TOKENS // 64]),
        ([TOKENS // 2] * 4, [TOKENS // 2] * 4),
    ],
)
def test_the_sizes_of_batches(lengths, expected):
    assert sorted(sum(batch) for batch in batches(lengths)) == sorted(expected)
