"""Attention in which sequence shards become head shards and back, over ranks that are threads: against one process."""

import numpy as np
import pytest
from rank_tests.threads import assert_refused
from sequence_problems import L, S, compare

import mha_core as mha
from mha_core.distributed import heads_attention, shard

HEADS = [(4, 4, 2), (6, 3, 2), (6, 3, 3), (4, 1, 4), (4, 2, 4), (4, 4, 3)]
"""Heads of queries and of keys, and ranks."""


@pytest.mark.parametrize(("heads", "kv", "size"), HEADS)
def test_gradients_of_grouped_heads_equal_those_of_one_process(heads, kv, size):
    r = np.random.default_rng(0)
    arrays = [r.normal(size=(2, h, n, 6)) for h, n in ((heads, L), (kv, S), (kv, S))]
    options = {"sink": r.normal(size=heads), "mask": mha.causal(), "query_offset": 6, "softcap": 3.0, "bias": mha.alibi(heads)}
    compare(size, heads_attention, arrays, "zigzag", 1, **options)


def test_heads_that_do_not_divide_and_arrays_without_heads_are_refused():
    x = np.ones((2, 6, 4))
    for size, array, message in (
        (3, x, "2 key heads and 2 query heads do not divide among 3 ranks: use ring_attention"),
        (2, x[0], r"expected arrays of at least 3 axes, \(\.\.\., heads, length, head_dim\)"),
    ):
        assert_refused(size, lambda g, x=array: heads_attention(*[shard(x, group=g)] * 3, group=g), ValueError, message)
