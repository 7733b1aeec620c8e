"""Attention over ranks, which are threads here: every option against one process, what is sent, and what differs."""

import numpy as np
import pytest
import torch
from rank_tests.threads import assert_parts, assert_refused, results, run, states
from sequence_problems import L, S, biases, compare, masks, problem

import mha_core as mha
from mha_core import distributed
from mha_core.distributed import heads_attention, ring_attention, shard, split_attention, unshard

LAYOUTS = ("contiguous", "zigzag", "striped")
MASKS, BIASES = masks(), list(biases().values())
KEEP = np.random.default_rng(6).random((L, S)) < 0.7
DROPOUTS = (None, mha.weight_dropout(0.2, seed=3), mha.weight_dropout(0.3, keep=KEEP))
each_layout = pytest.mark.parametrize("layout", LAYOUTS)


@pytest.mark.parametrize("attend", [ring_attention, heads_attention])
@pytest.mark.parametrize("size", [1, 2, 3, pytest.param(4, marks=pytest.mark.full)])
@each_layout
@pytest.mark.parametrize("mask", MASKS)
def test_attention_and_its_gradients_equal_those_of_one_process(attend, size, layout, mask):
    """Each mask meets each bias, and each layout each offset and kind of dropout."""
    arrays, options = problem()
    if attend is heads_attention and size == 3:  # its heads do not divide
        size = 4
    at, by = list(MASKS).index(mask), LAYOUTS.index(layout)
    options |= {"mask": MASKS[mask], "bias": BIASES[(at + size + 3 * by) % 5], "query_offset": (4, 0, -3)[(at + size) % 3]}
    compare(size, attend, arrays, layout, weight_dropout=DROPOUTS[(at + by) % 3], **options)


@pytest.mark.parametrize("attend", [ring_attention, heads_attention])
@each_layout
def test_packed_sequences_equal_one_process(attend, layout):
    (query, key, value), options = problem()
    arrays = query, key[..., :L, :], value[..., :L, :]
    compare(2, attend, arrays, layout, **options, mask=mha.packed([9, 0, 3, 11]) & mha.causal())


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("mask", MASKS)
def test_split_keys_give_the_same_bits_on_all_ranks(size, mask):
    (query, key, value), options = problem()
    options |= {"mask": MASKS[mask], "bias": BIASES[(list(MASKS).index(mask) + size) % 5]}
    exact = mha.attention_state(query, key, value, **options)

    def attend(group):
        held = (shard(x, "zigzag", group=group) for x in (key, value))
        return split_attention(query, *held, group=group, layout="zigzag", **options)

    first, *states_of_others = results(size, attend)
    for x, whole in zip(first, exact, strict=True):
        np.testing.assert_allclose(x, whole, rtol=0, atol=1e-12)
    assert all((x == y).all() for other in states_of_others for x, y in zip(other, first, strict=True))


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_dtypes_are_those_of_one_process(dtype):
    arrays, options = problem(dtype)
    options["sink"] = options["sink"].astype(np.float32)
    exact = mha.attention_state(*arrays, **options)
    parts = states(2, ring_attention, arrays, **options)
    assert all((part.out.dtype, part.lse.dtype) == (exact.out.dtype, exact.lse.dtype) for part in parts)
    assert_parts([part.out for part in parts], exact.out, tolerance=2e-3)


def test_ranks_may_hold_nothing_and_sequences_may_be_empty():
    x = np.random.default_rng(0).normal(size=(2, 5, 4))
    layout = [[range(5)], [], [range(0)]]
    exact = mha.attention_state(x, x, x, mask=mha.causal())
    first, *empty = states(3, ring_attention, [x] * 3, layout, mask=mha.causal())
    np.testing.assert_allclose(first.out, exact.out, atol=1e-12)
    assert [state.out.shape for state in empty] == [(2, 0, 4)] * 2
    assert [state.out.shape for state in states(2, ring_attention, [x[:, :0]] * 3)] == [(2, 0, 4)] * 2


@pytest.mark.parametrize(("mask", "blocks"), [(None, 12), (mha.causal(), 6), (mha.window(3, 0), 3), (mha.window(0, 0), 0)])
def test_keys_that_no_rank_sees_are_not_sent(mask, blocks):
    """Four ranks with 4 keys each: 12 blocks travel without a mask; a window of 3 reaches the next rank only."""
    x = np.ones((1, 16, 2))
    _, world = run(4, lambda g: ring_attention(*[shard(x, group=g)] * 3, group=g, mask=mask))
    assert sum(world.sent) == blocks * 2 * 4 * 2


@pytest.mark.parametrize("layout", [*LAYOUTS, [[range(0, 13, 2)], [range(1, 13, 4)], [range(3, 13, 4)]]])
def test_a_sharded_array_is_whole_again(layout):
    x = np.random.default_rng(0).normal(size=(2, 13, 3))
    for y in results(3, lambda g: unshard(shard(x, layout, group=g), layout, group=g)):
        np.testing.assert_array_equal(x, y)


def test_parts_whose_lengths_are_not_those_of_the_layout_are_refused():
    message = "x has 3 positions on rank 0, where the layout of 8 positions has 4"
    parts = lambda group: unshard(np.ones((2, 3 + 2 * group.rank, 3)), group=group)  # noqa: E731
    assert_refused(2, parts, distributed.RanksDiffer, message)


X = np.ones((1, 4, 4))
FAULTS = {
    "dtype": (lambda r: {"query": X.astype([np.float64, np.float32][r]), "key": X.astype([np.float64, np.float32][r]),
                         "value": X.astype([np.float64, np.float32][r])},
              "the dtype of query is not the same on all ranks: float64 on rank 0, float32 on rank 1"),
    "shape": (lambda r: {"value": X[..., : 4 - r]},
              r"the shape of value is not the same on all ranks: \[1, 'length', 4\] on rank 0, \[1, 'length', 3\] on rank 1"),
    "softcap": (lambda r: {"softcap": 1.0 + r}, "option softcap is not the same on all ranks: 1.0 on rank 0, 2.0 on rank 1"),
    "mask": (lambda r: {"mask": [mha.causal(), mha.window(2, 0)][r]}, "option mask is not the same on all ranks: Band"),
    "missing": (lambda r: [{}, {"softcap": 1.0}][r],
                "option softcap is not the same on all ranks: missing on rank 0, 1.0 on rank 1"),
    "layout": (lambda r: {"layout": ["zigzag", "striped"][r]},
               "layout is not the same on all ranks: zigzag on rank 0, striped on rank 1"),
    "length": (lambda r: {"query": X[:, : 4 - 2 * r]},
               "query has 4 positions on rank 0, where the layout of 6 positions has 3"),
    "backend": (lambda r: dict.fromkeys(("query", "key", "value"), [X, torch.from_numpy(X)][r]),
                "backend is not the same on all ranks: numpy on rank 0, torch on rank 1"),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_ranks_that_differ_all_raise_and_say_how(fault):
    change, message = FAULTS[fault]

    def attend(group):
        return ring_attention(**{"query": X, "key": X, "value": X, **change(group.rank)}, group=group)

    assert_refused(2, attend, distributed.RanksDiffer, message)


def test_split_attention_refuses_queries_of_different_lengths():
    message = "the length of query is not the same on all ranks: 4 on rank 0, 3 on rank 1"
    split = lambda group: split_attention(X[:, : 4 - group.rank], X, X, group=group)  # noqa: E731
    assert_refused(2, split, distributed.RanksDiffer, message)


def test_an_invalid_call_on_one_rank_raises_on_the_others():
    def attend(group):
        return ring_attention(X, X, X[:, : 4 - group.rank], group=group)

    (first, second), _ = run(2, attend)
    with pytest.raises(distributed.RankFailed, match="rank 1: ValueError: value has length 3, but key has 4"):
        raise first
    with pytest.raises(ValueError, match=r"^value has length 3, but key has 4"):
        raise second


def test_a_mask_must_fit_the_whole_problem():
    message = r"mask has shape \(4, 4\); expected a shape that broadcasts to .* = \(1, 8, 8\)"
    assert_refused(2, lambda g: ring_attention(X, X, X, group=g, mask=np.ones((4, 4), bool)), ValueError, message)
