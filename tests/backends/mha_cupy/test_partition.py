"""The partition of a problem into blocks of scores: each pair in the band is in one block, and no block is too large."""

import numpy as np
import pytest
from cuda_kernels import without_time_limits
from hypothesis import given
from hypothesis import strategies as st

from mha_core.plugin import Limits
from mha_cupy.attention.partition import MAX_KEYS, MAX_SCORES, NUM_BLOCKS, blocks, threads_of_row

small = st.integers(1, 9)
limit = st.none() | st.integers(-12, 12)


@without_time_limits
@given(
    small, small, st.integers(1, 3), st.integers(1, 40), st.integers(1, 40), limit, limit, st.integers(1, 200), st.booleans()
)
def test_every_pair_in_the_band_is_in_one_block(batch, heads, groups, rows, cols, low, high, scores, computed):
    copies = batch * heads * groups if computed else 0
    times = np.zeros((batch, heads, rows, cols), dtype=int)
    for block in blocks(batch, heads, groups, rows, cols, Limits(low, high), copies=copies, scores=scores):
        for chunk in block.cols:
            times[tuple(slice(r.start, r.stop) for r in (block.batch, block.heads, block.rows, chunk))] += 1
            count = len(block.batch) * len(block.heads) * groups * len(block.rows) * len(chunk)
            assert count <= scores or len(block.batch) * len(block.heads) * len(block.rows) == 1
            if computed:
                assert copies * len(block.rows) * len(chunk) <= scores or len(block.rows) == 1
    q, k = np.arange(rows)[:, None], np.arange(cols)
    everywhere = np.ones((rows, cols), dtype=bool)
    seen = everywhere & (True if low is None else k - q >= low) & (True if high is None else k - q <= high)
    assert (times <= 1).all() and (times[..., seen] == 1).all()


@pytest.mark.parametrize("length", [4096, 32768])
def test_a_narrow_band_needs_few_scores(length):
    scores = sum(
        len(block.batch) * len(block.heads) * len(block.rows) * len(chunk)
        for block in blocks(1, 1, 1, length, length, Limits(-255, 0))
        for chunk in block.cols
    )
    assert scores < length * 1300


@pytest.mark.parametrize(("batch", "heads", "length"), [(32, 16, 512), (1, 16, 2048), (1, 16, 8192)])
def test_a_large_problem_has_no_more_blocks_than_memory_demands(batch, heads, length):
    """Launching a block takes Python the same time whatever its size, and a GPU finishes a small one before the next comes."""
    partition = list(blocks(batch, heads, 1, length, length, Limits()))
    sizes = [len(block.batch) * len(block.heads) * len(block.rows) * length for block in partition]
    total = batch * heads * length**2
    assert max(sizes) <= max(total // NUM_BLOCKS, 1) and len(partition) == max(NUM_BLOCKS, total // MAX_SCORES)


@without_time_limits
@given(st.integers(1, MAX_KEYS))
def test_a_row_has_threads_for_all_its_scores_and_few_more(num_cols):
    threads, each = threads_of_row(num_cols)
    assert threads * each >= num_cols and threads in (32, 64, 128, 256, 512, 1024) and each in (1, 2, 4, 8, 16)
    assert threads * each < 2 * max(32, num_cols)


def test_no_block_is_larger_where_the_band_ends_before_the_middle():
    """The first, the middle and the last queries then see fewer keys than others do."""
    scores = 1 << 20
    for block in blocks(1, 1, 1, 5778, 2272, Limits(-67, -35), scores=scores):
        assert len(block.rows) * sum(map(len, block.cols)) <= scores
