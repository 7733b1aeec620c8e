"""Layouts: each position belongs to one rank, pieces are even, and wrong ranges are named."""

from types import SimpleNamespace

import pytest
from refusals import refusals

from mha_core.distributed.layout import layout_of, positions_of


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


def test_a_compiled_program_has_ranges_of_one_length_for_all_ranks():
    engine = SimpleNamespace(size=2, rank=None, rank_range=tuple)
    assert positions_of(engine, layout_of("zigzag", 8, 2)) == [(range(2), range(2, 4)), (range(6, 8), range(4, 6))]
    with pytest.raises(ValueError, match="must hold ranges of the same lengths, of successive positions"):
        positions_of(engine, layout_of("contiguous", 5, 2))


def laid_out(layout):
    return lambda: layout_of(layout, 4, 2)


test_wrong_layouts_get_a_clear_error = refusals(
    {
        ValueError: {
            "layout is 'spiral'; expected 'contiguous', 'zigzag', 'striped', or the ranges of each rank": laid_out("spiral"),
            "layout has ranges for 1 ranks, but the group has 2": laid_out([[range(4)]]),
            "layout: ranks 0 and 1 both hold position 2": laid_out([[range(3)], [range(2, 4)]]),
            "layout: no rank holds position 2": laid_out([[range(2)], [range(3, 4)]]),
            "layout: rank 1 holds position 4, but there are 4 positions": laid_out([[range(2)], [range(2, 5)]]),
            "layout: range(1, -1, -1) of rank 0 does not ascend": laid_out([[range(1, -1, -1)], [range(2, 4)]]),
        },
        TypeError: {
            "layout is int; expected a name, or the ranges of each rank": laid_out(3),
            "layout contains something that is not a range": laid_out([[0], [1]]),
        },
    }
)
