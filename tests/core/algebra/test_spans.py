"""Joining tiles that are alike."""

import numpy as np
import pytest

from mha_core.algebra.functions import BLOCK, codes_of
from mha_core.algebra.spans import spans


@pytest.mark.parametrize("seed", range(30))
def test_spans_cover_the_attending_pairs_once_and_mask_those_in_doubt(seed):
    rng = np.random.default_rng(seed)
    queries, keys = rng.integers(1, 400, 2)
    kinds = rng.integers(0, 3, (-(-queries // BLOCK), -(-keys // BLOCK)))
    kind = kinds[np.arange(queries) // BLOCK][:, np.arange(keys) // BLOCK]
    pairs = (kind == 2) | ((kind == 1) & (rng.random((queries, keys)) < 0.5))
    codes = codes_of(np, pairs, queries, keys).tolist()
    first, last = sorted(rng.integers(0, queries, 2).tolist())
    left, right = sorted(rng.integers(0, keys, 2).tolist())
    rows, cols = range(first, last + 1), range(left, right + 1)
    covered = np.zeros((queries, keys), dtype=int)
    for span in spans(codes, rows, cols, width=int(rng.integers(1, 4))):
        assert span.rows and span.cols
        covered[span.rows.start : span.rows.stop, span.cols.start : span.cols.stop] += 1
        for row in span.rows:
            if not any(row in some for some in span.masked):
                assert pairs[row, span.cols.start : span.cols.stop].all(), f"seed {seed}"
        assert all(some[0] in span.rows and some[-1] in span.rows for some in span.masked)
    assert covered.max(initial=0) <= 1, f"seed {seed}"
    inside = np.zeros_like(pairs)
    inside[first : last + 1, left : right + 1] = True
    assert not (pairs & inside & (covered == 0)).any(), f"seed {seed}"
    assert not covered[~inside].any(), f"seed {seed}"


def test_neighbours_of_one_kind_are_one_span():
    codes = [[2, 2, 1, 0, 0], [2, 2, 2, 1, 0]]
    found = [(len(rows), len(cols), sum(map(len, masked))) for rows, cols, masked in spans(codes, range(128), range(320))]
    assert found == [(128, 128, 0), (128, 64, 64), (64, 64, 64)]


def test_wide_spans_join_neighbours_that_differ():
    codes = [[2, 1, 0, 0, 2, 2], [2, 2, 0, 0, 2, 0]]
    found = [(list(rows)[:1], cols, masked) for rows, cols, masked in spans(codes, range(128), range(384), width=2)]
    assert found == [
        ([0], range(0, 128), (range(0, 64),)),
        ([0], range(256, 384), (range(64, 128),)),
    ]
