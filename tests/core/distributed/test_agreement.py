"""Errors of one rank, which the others hear of: before the first exchange, between exchanges, in layers; what it costs."""

import threading
from functools import partial

import numpy as np
import pytest
from rank_tests.faults import assert_heard, outcome, outcomes
from rank_tests.threads import Threads, assert_refused, results, run

import mha_core as mha
from mha_core.distributed import (
    RanksDiffer,
    Sharding,
    heads_attention,
    rehearsal,
    ring_attention,
    sequences,
    split_attention,
    unshard,
)
from mha_core.ops import multi_head
from mha_core.plugin import Mask

X = np.random.default_rng(0).normal(size=(1, 3, 4, 2))


class Counts(Threads):
    """Counts its exchanges of texts."""

    def __init__(self, group):
        super().__init__(group.world, group.rank)
        self.texts = 0

    def all_gather_text(self, text):
        self.texts += 1
        return super().all_gather_text(text)


def texts(size, function):
    """Return how many texts each rank exchanges in a call."""

    def on_rank(group):
        counts = Counts(group)
        function(counts)
        return counts.texts

    return results(size, on_rank)


def failing_in(monkeypatch, owner, name, error, at=1, rank=1):
    """Let a function raise on one rank, each time from the ``at``-th call on."""
    correct, here = getattr(owner, name), threading.local()

    def fails(*arguments, **options):
        here.calls = getattr(here, "calls", 0) + 1
        if here.fails and here.calls >= at:
            raise error("no room")
        return correct(*arguments, **options)

    monkeypatch.setattr(owner, name, fails)

    def start(group):
        here.fails = group.rank == rank

    return start


@pytest.mark.parametrize("size", [2, 4])
def test_a_fault_of_one_rank_is_heard_by_the_others(size):
    received, _ = run(size, lambda g: outcomes(partial(ring_attention, group=g), X[0], g.rank, 1))
    assert_heard(received, 1)


@pytest.mark.parametrize("attend", [ring_attention, heads_attention, split_attention])
def test_attention_takes_two_exchanges_of_texts(attend):
    assert texts(3, lambda g: attend(X, X, X, group=g, mask=mha.window(2, 0), query_offset=0)) == [2] * 3


def test_a_layer_takes_one_exchange_of_texts_more_however_many_are_in_it():
    encoder = mha.Encoder.init(d_model=6, num_heads=3, d_ff=8, num_layers=4, seed=0, dtype=np.float64)
    x = np.ones((1, 4, 6))
    assert texts(2, lambda g: encoder(x, group=Sharding(g))) == [4 * 2 + 1] * 2
    assert texts(2, lambda g: encoder.layers[0].attention(x, group=Sharding(g))) == [2 + 1] * 2


PLACES = {
    "ring, first block": (ring_attention, sequences, "attention_state", 1),
    "ring, third block": (ring_attention, sequences, "attention_state", 3),
    "ring, merging": (ring_attention, sequences.Sequences, "merged", 2),
    "ring, the end": (ring_attention, sequences.Sequences, "finished", 1),
    "heads": (heads_attention, mha.distributed.heads, "attention_state", 1),
    "heads, keys in order": (heads_attention, mha.distributed.heads, "in_order", 2),
    "heads, parts to return": (heads_attention, mha.distributed.heads, "part_of", 4),
    "split": (split_attention, sequences, "attention_state", 1),
    "split, merging": (split_attention, sequences.Sequences, "merged", 2),
    "before": (ring_attention, rehearsal, "facts_of", 1),
}


@pytest.mark.parametrize("error", [MemoryError, KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("place", PLACES)
def test_an_error_between_exchanges_is_heard_and_the_next_call_works(monkeypatch, place, error):
    attend, owner, name, at = PLACES[place]
    start = failing_in(monkeypatch, owner, name, error, at)

    def on_rank(group):
        start(group)
        first = outcome(lambda: attend(X, X, X, group=group))
        monkeypatch.undo()
        group.all_gather_text("")
        return first, attend(X[:, :, :1], X[:, :, :1], X[:, :, :1], group=group).out

    received, _ = run(3, on_rank)
    message = f"{error.__name__}: no room"
    assert [first for first, _ in received] == [f"RankFailed: rank 1: {message}", message, f"RankFailed: rank 1: {message}"]
    assert all(out.shape == (1, 3, 1, 2) for _, out in received)


def test_an_error_in_the_gradients_of_one_rank_is_heard(monkeypatch):
    """Also one in the sums, which are of arrays that arrived; tests/core/distributed/test_gradients.py has one in a block."""
    start = failing_in(monkeypatch, mha.distributed.attention, "_sums", MemoryError, at=4)

    def on_rank(group):
        start(group)
        _, pullback = mha.vjp(ring_attention, X, X, X, group=group)
        return outcome(pullback, mha.AttentionState(X, None))

    message = "MemoryError: no room"
    assert run(3, on_rank)[0] == [f"RankFailed: rank 1: {message}", message, f"RankFailed: rank 1: {message}"]


ENCODER, DECODER = (
    cls.init(d_model=6, num_heads=3, d_ff=8, num_layers=2, seed=0, dtype=np.float64) for cls in (mha.Encoder, mha.Decoder)
)
Y = np.random.default_rng(1).normal(size=(2, 4, 6))
LAYERS = {
    "attention": lambda y, group: ENCODER.layers[0].attention(y, group=group),
    "encoder": lambda y, group: ENCODER(y, group=group),
    "encoder layer": lambda y, group: ENCODER.layers[0](y, group=group),
    "decoder": lambda y, group: DECODER(y, Y, group=group),
    "decoder with a cache": lambda y, group: DECODER(y, Y, cache=mha.DecoderCache(), group=group),
}


@pytest.mark.parametrize("layer", LAYERS)
def test_a_wrong_argument_of_a_layer_on_one_rank_is_heard(layer):
    for wrong, message in ((Y.tolist(), "TypeError: "), (Y.astype(np.float32), "TypeError: "), (Y[..., :5], "ValueError: ")):

        def on_rank(group, wrong=wrong):
            call = partial(LAYERS[layer], group=Sharding(group))
            return outcome(call, wrong if group.rank == 1 else Y), outcome(call, Y)

        (first, right), (second, also) = run(2, on_rank)[0]
        assert second.startswith(message) and first == f"RankFailed: rank 1: {second}" and right == also == ""


@pytest.mark.parametrize("at", [1, 2])
@pytest.mark.parametrize("layer", ["encoder", "decoder with a cache"])
def test_an_error_between_and_after_the_attention_of_layers_is_heard(monkeypatch, layer, at):
    start = failing_in(monkeypatch, mha.FeedForward, "__call__", MemoryError, at)

    def on_rank(group):
        start(group)
        return outcome(LAYERS[layer], Y, Sharding(group))

    assert run(2, on_rank)[0] == ["RankFailed: rank 1: MemoryError: no room", "MemoryError: no room"]


@pytest.mark.parametrize("decode", ["attention", "decoder layer", "decoder"])
def test_a_step_that_fails_on_one_rank_leaves_all_caches_unchanged(monkeypatch, decode):
    """The other ranks had finished the step."""

    def on_rank(group):
        caches = {"decoder": mha.DecoderCache(), "attention": mha.KeyValueCache()}
        cache = caches.get(decode, (mha.KeyValueCache(), mha.KeyValueCache()))
        layer = {"decoder": DECODER, "attention": ENCODER.layers[0].attention}.get(decode, DECODER.layers[0])
        memory = [] if decode == "attention" else [Y]

        def step(start, stop):
            return layer(Y[:, start:stop], *memory, mask=mha.causal(), cache=cache, group=Sharding(group))

        first = step(0, 2)
        owner, name = (multi_head, "linear") if decode == "attention" else (mha.LayerNorm, "__call__")
        group.all_gather_text("")
        if group.rank == 0:
            failing.append(failing_in(monkeypatch, owner, name, MemoryError, {"attention": 1, "decoder": 6}.get(decode, 3)))
        group.all_gather_text("")
        failing[0](group)
        failed = outcome(step, 2, 4)
        group.all_gather_text("")
        if group.rank == 0:
            monkeypatch.undo()
        group.all_gather_text("")
        return failed, np.concatenate([first, step(2, 4)], axis=1)

    failing = []
    (failed, out), (own, same) = results(2, on_rank)
    assert failed == "RankFailed: rank 1: MemoryError: no room" and own == "MemoryError: no room"
    exact = {"decoder": lambda: DECODER(Y, Y), "attention": lambda: ENCODER.layers[0].attention(Y, mask=mha.causal())}
    np.testing.assert_allclose(out, exact.get(decode, lambda: DECODER.layers[0](Y, Y))(), atol=1e-12)
    np.testing.assert_array_equal(out, same)


class OfOneRank(Mask):
    """A mask of a user's class that hides, or fails, on one rank only; the ranks compare its name alone."""

    def __init__(self, relation):
        self.relation = relation

    def block(self, grid):
        return grid.key_index <= grid.query_position


def fails(grid):
    raise ZeroDivisionError("no relation")


@pytest.mark.parametrize("attend", [ring_attention, heads_attention, split_attention])
def test_a_mask_that_fails_on_one_rank_is_heard(attend):
    def on_rank(group):
        correct = mha.window(None, 0).relation
        mask = OfOneRank(fails if group.rank == 1 else correct)
        return outcome(lambda: attend(X, X, X, group=group, mask=mask, query_offset=0))

    message = "ZeroDivisionError: no relation"
    assert run(2, on_rank)[0] == [f"RankFailed: rank 1: {message}", message]


def test_masks_that_hide_different_keys_from_ranks_are_refused():
    def attend(group):
        mask = OfOneRank(mha.window([0, None][group.rank], 0).relation)
        return ring_attention(X, X, X, group=group, mask=mask, query_offset=0)

    message = r"the reach of the ranks' keys is not the same on all ranks: \[0, 0\] on rank 0, \[1, 0\] on rank 1"
    assert_refused(2, attend, RanksDiffer, message)


def test_a_rank_raises_its_own_error_where_its_engine_fails_too():
    class Lost(Threads):
        def all_gather_text(self, text):
            raise ConnectionError("the other rank is gone")

    def attend(group):
        ring_attention(X, X.tolist(), X, group=Lost(group.world, group.rank))

    (error,), _ = run(1, attend)
    assert isinstance(error, TypeError) and isinstance(error.__cause__, ConnectionError)
    (error,), _ = run(1, lambda g: unshard(X, group=Lost(g.world, g.rank)))
    assert isinstance(error, ConnectionError)
