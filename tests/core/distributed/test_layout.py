"""Layouts: each position belongs to one rank, pieces are even, and wrong ranges are named."""

import pytest

from mha_core.distributed.layout import layout_of


@pytest.mark.parametrize("name", ["contiguous", "zigzag", "striped"])
@pytest.mark.parametrize("size", [1, 2, 3, 5])
@pytest.mark.parametrize("length", [0, 1, 4, 13, 40])
def test_each_position_belongs_to_one_rank(name, size, length):
    ranges = layout_of(name, length, size)
    held = [position for of_rank in ranges for each in of_rank for position in each]
    assert sorted(held) == list(range(length))
    counts = [sum(map(len, of_rank)) for of_rank in ranges]
    assert max(counts) - min(counts) <= (2 if name == "zigzag" else 1)
    assert layout_of(ranges, length, size) == ranges


def test_zigzag_is_even_under_a_causal_mask():
    work = [sum(position + 1 for each in of_rank for position in each) for of_rank in layout_of("zigzag", 64, 4)]
    assert len(set(work)) == 1
    assert layout_of("zigzag", 8, 2) == ((range(0, 2), range(6, 8)), (range(2, 4), range(4, 6)))


@pytest.mark.parametrize(
    ("layout", "error", "message"),
    [
        ("spiral", ValueError, r"layout is 'spiral'; expected 'contiguous', 'zigzag', 'striped', or the ranges of each rank"),
        (3, TypeError, "layout is int; expected a name, or the ranges of each rank"),
        ([[0], [1]], TypeError, "layout contains something that is not a range"),
        ([[range(4)]], ValueError, "layout has ranges for 1 ranks, but the group has 2"),
        ([[range(3)], [range(2, 4)]], ValueError, "layout: ranks 0 and 1 both hold position 2"),
        ([[range(2)], [range(3, 4)]], ValueError, "layout: no rank holds position 2"),
        ([[range(2)], [range(2, 5)]], ValueError, "layout: rank 1 holds position 4, but there are 4 positions"),
        ([[range(1, -1, -1)], [range(2, 4)]], ValueError, r"layout: range\(1, -1, -1\) of rank 0 does not ascend"),
    ],
)
def test_wrong_layouts_get_a_clear_error(layout, error, message):
    with pytest.raises(error, match=message):
        layout_of(layout, 4, 2)
