"""Gradients of attention over ranks, which are threads here: against one process."""

import threading
from itertools import pairwise

import numpy as np
import pytest
from rank_tests.threads import assert_refused, results, run
from sequence_problems import compare

import mha_core as mha
from mha_core.distributed import RankFailed, heads, heads_attention, ring_attention, shard, split_attention
from mha_core.distributed.sequences import Sequences

MASKS = {"none": None, "causal": mha.causal(), "window": mha.window(4, 2), "chunks": mha.chunks(5)}


def random_layout(r, length, size):
    """Cut positions into runs, some of which are shared out in steps, and give the pieces to ranks in any order."""
    ends = [0, *sorted(r.choice(np.arange(1, length), size=4, replace=False)), length]
    pieces = []
    for start, stop in pairwise(ends):
        step = int(r.integers(1, 4))
        pieces += [range(int(start) + i, int(stop), step) for i in range(step)]
    layout = [[] for _ in range(size)]
    for at in r.permutation(len(pieces)):
        layout[r.integers(size)].append(pieces[at])
    return layout


@pytest.mark.parametrize("seed", range(12))
def test_random_layouts_with_empty_ranks_equal_one_process(seed):
    r = np.random.default_rng(seed)
    size, length = int(r.integers(2, 5)), int(r.integers(8, 20))
    layout = random_layout(r, length, size)
    name = list(MASKS)[seed % len(MASKS)]
    arrays = [r.normal(size=(2, h, length, 6)) for h in (4, 2, 2)]
    options = {"mask": MASKS[name], "bias": mha.alibi(4), "sink": r.normal(size=4)}
    compare(size, ring_attention, arrays, layout, seed, f"seed {seed}, {name}, {layout}", **options)


def test_a_function_of_attention_over_ranks_learns_as_one_process_does():
    """value_and_grad, in which only the output has a gradient, and half precision is summed in float32."""
    x = np.random.default_rng(0).normal(size=(2, 8, 4)).astype(np.float32)

    def loss(x, attend):
        return np.sum(attend(x).out ** 2)

    exact = mha.value_and_grad(loss)(x, lambda x: mha.attention_state(x, x, x))[1]

    def on_rank(group):
        return mha.value_and_grad(loss)(shard(x, group=group), lambda x: ring_attention(x, x, x, group=group))[1]

    np.testing.assert_allclose(np.concatenate(results(2, on_rank), axis=-2), exact, rtol=1e-5, atol=1e-5)
    half = x.astype(np.float16)
    gradients = results(
        2, lambda g: mha.vjp(ring_attention, *[shard(half, group=g)] * 3, group=g)[1](mha.AttentionState(half[:, :4], None))[1]
    )
    assert all(each.dtype == np.float16 for each in gradients)


def test_a_sink_of_minus_infinity_has_gradient_0():
    x, sink = np.ones((1, 8, 2)), np.asarray([-np.inf])

    def on_rank(group):
        parts = [shard(x, group=group)] * 3
        _, pullback = mha.vjp(ring_attention, *parts, group=group, sink=sink, mask=mha.key_lengths(0))
        return pullback(mha.AttentionState(x[:, :4], None)).options["sink"]

    assert [each.tolist() for each in results(2, on_rank)] == [[0.0]] * 2


def test_keys_that_no_rank_sees_are_not_sent_backward():
    """A window that reaches the next rank only: keys are sent there, then their gradients, which are returned."""
    x = np.ones((1, 16, 2))

    def on_rank(group):
        _, pullback = mha.vjp(ring_attention, *[shard(x, group=group)] * 3, group=group, mask=mha.window(3, 0))
        group.world.barrier.wait()
        group.world.sent[group.rank] = 0
        pullback(mha.AttentionState(x[:, :4], None))

    _, world = run(4, on_rank)
    assert sum(world.sent) == 3 * 2 * 2 * 4 * 2


@pytest.mark.parametrize(
    ("owner", "name", "attend"),
    [
        (Sequences, "attend", ring_attention),
        (Sequences, "gradients", ring_attention),
        (heads, "attention_state", heads_attention),
    ],
    ids=["ring", "ring, backward", "heads"],
)
def test_an_error_on_one_rank_raises_on_all(monkeypatch, owner, name, attend):
    x, correct, failing = np.ones((2, 8, 2)), getattr(owner, name), threading.local()

    def fails(*arguments, **options):
        if getattr(failing, "here", False):
            raise MemoryError("no room for a block")
        return correct(*arguments, **options)

    def on_rank(group):
        failing.here = group.rank == 1
        _, pullback = mha.vjp(attend, *[shard(x, group=group)] * 3, group=group)
        pullback(mha.AttentionState(x[:, :4], None))

    monkeypatch.setattr(owner, name, fails)
    (first, second), _ = run(2, on_rank)
    assert isinstance(first, RankFailed) and str(first) == "rank 1: MemoryError: no room for a block"
    assert isinstance(second, MemoryError)


def test_gradients_without_a_rule_are_refused():
    x, bias = np.ones((1, 4, 2)), np.zeros((8, 8))

    def of_bias(group):
        return mha.value_and_grad(lambda b: ring_attention(x, x, x, group=group, bias=b).out)(bias)

    assert_refused(
        2, of_bias, TypeError, "ring_attention has no rule for gradients of bias: pass an array whose gradient is not"
    )
    of_split = lambda g: mha.vjp(split_attention, x, x, x, group=g)  # noqa: E731
    assert_refused(2, of_split, TypeError, "split_attention has no rule for gradients: call it where none are")
