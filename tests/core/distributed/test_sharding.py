"""Layers over ranks, which are threads here: encoders, decoders, their gradients and caches against one process."""

from dataclasses import replace

import numpy as np
import pytest
from rank_tests.threads import assert_refused, results

import mha_core as mha
from mha_core.distributed import Sharding, heads_attention, ring_attention, split_attention

D, HEADS = 12, 4


def normal(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


ENCODER, DECODER = (
    cls.init(d_model=D, num_heads=HEADS, d_ff=20, num_layers=2, seed=0, dtype=np.float64) for cls in (mha.Encoder, mha.Decoder)
)
PLAIN = mha.MultiHeadAttention.init(d_model=24, num_heads=HEADS, num_kv_heads=2, seed=0, dtype=np.float64)
TURNING = replace(PLAIN, rotary=mha.Rotary.init(max_length=64, dim=4, interleaved=True, dtype=np.float64))


def assert_on_all_ranks(outputs, exact):
    for out in outputs:
        np.testing.assert_allclose(out, exact, rtol=0, atol=1e-12)


def assert_equals_one_process(layer, *arrays, size, layout, attend=ring_attention, **options):
    """Assert that a layer of the ranks' parts of arrays returns their parts of its result."""

    def on_rank(group):
        ranks = Sharding(group, layout, attend=attend)
        return ranks.unshard(layer(*map(ranks.shard, arrays), group=ranks, **options))

    assert_on_all_ranks(results(size, on_rank), layer(*arrays, **options))


@pytest.mark.parametrize("attend", [ring_attention, heads_attention])
@pytest.mark.parametrize("layout", ["contiguous", "zigzag", "striped"])
@pytest.mark.parametrize("size", [1, 2, 4])
def test_an_encoder_over_ranks_equals_one_process(size, layout, attend):
    options = {"mask": mha.window(7, 3), "bias": mha.alibi(HEADS)}
    assert_equals_one_process(ENCODER, normal(2, 19, D), size=size, layout=layout, attend=attend, **options)


@pytest.mark.parametrize("layout", ["contiguous", "zigzag", "striped"])
@pytest.mark.parametrize("offset", [0, 5])
def test_rotary_positions_are_those_of_the_whole_sequence(layout, offset):
    options = {"mask": mha.causal(), "query_offset": offset}
    assert_equals_one_process(TURNING, normal(2, 19, 24), size=3, layout=layout, **options)


def test_a_decoder_over_ranks_equals_one_process():
    assert_equals_one_process(DECODER, normal(2, 13, D), normal(2, 8, D, seed=1), size=3, layout="zigzag")


@pytest.mark.parametrize("attend", [ring_attention, heads_attention])
def test_the_gradients_of_all_ranks_add_up_to_those_of_one_process(attend):
    x, target = normal(2, 12, D), normal(2, 12, D, seed=1)

    def loss(layers, x, target, **options):
        return np.sum((layers(x, mask=mha.causal(), **options) - target) ** 2)

    _, exact = mha.value_and_grad(loss)(ENCODER, x, target)

    def on_rank(group):
        ranks = Sharding(group, "zigzag", attend=attend)
        return mha.value_and_grad(loss)(ENCODER, ranks.shard(x), ranks.shard(target), group=ranks)[1].arrays()

    gradients = results(2, on_rank)
    for name, whole in exact.arrays().items():
        np.testing.assert_allclose(sum(each[name] for each in gradients), whole, rtol=0, atol=1e-10, err_msg=name)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_a_cache_spread_over_ranks_decodes_as_one_process_does(size):
    x = normal(2, 17, 24)
    exact = TURNING(x, mask=mha.causal())

    def on_rank(group):
        ranks, cache, outputs, start = Sharding(group), mha.KeyValueCache(), [], 0
        for length in (5, 1, 0, 1, 7, 3):
            step = x[:, start : start + length]
            outputs.append(TURNING(step, cache=cache, group=ranks, mask=mha.causal()))
            start += length
            assert cache.length == start
        assert cache.key.shape[-2] == len(range(group.rank, 17, size))
        return np.concatenate(outputs, axis=1)

    assert_on_all_ranks(results(size, on_rank), exact)


def test_a_decoder_with_caches_spread_over_ranks_decodes_as_one_process_does():
    y, memory = normal(2, 5, D), normal(2, 8, D, seed=1)

    def on_rank(group):
        ranks, cache = Sharding(group), mha.DecoderCache()
        return np.concatenate([DECODER(y[:, i : i + 1], memory, cache=cache, group=ranks) for i in range(5)], axis=1)

    assert_on_all_ranks(results(2, on_rank), DECODER(y, memory))


def test_explain_shows_what_is_sent_and_which_kernel_computes_a_block():
    x = np.ones((1, HEADS, 16, 8), dtype=np.float32)

    def on_rank(group):
        parts, options = [x[:, :, :4]] * 3, {"group": group, "mask": mha.causal()}
        forward = mha.explain(ring_attention, *parts, **options)
        both = mha.explain(ring_attention, *parts, gradients=True, **options)
        return forward, both, group.world.sent[group.rank]

    explained = results(4, on_rank)
    part = 2 * HEADS * 4 * 8 * 4  # bytes of keys and values of a rank
    assert [forward.sent for forward, _, _ in explained] == [part, 2 * part, 3 * part, 0]  # causal: those of the last rank stay
    assert [len(forward.calls) for forward, _, _ in explained] == [1, 2, 3, 4]
    assert {call.kernel for forward, _, _ in explained for call in forward.calls} == {"tiles"}
    assert f"    sends     {part:,} bytes to other ranks" in str(explained[0][0]).splitlines()
    assert [call.op for call in explained[1][1].calls] == ["ring_attention", "ring_attention_vjp"]
    # backward: keys and values travel with their gradients, which the last rank returns
    assert [both.calls[1].sent for _, both, _ in explained] == [2 * part, 4 * part, 6 * part, 3 * part]
    assert not any(sent for _, _, sent in explained)

    def of_split(group):
        return mha.explain(split_attention, x[:, :, :1], x[:, :, :4], x[:, :, :4], group=group)

    of_state = HEADS * 8 * 4 + HEADS * 4  # bytes of out and lse of one query
    assert [each.sent for each in results(3, of_split)] == [2 * of_state] * 3

    def of_layer(group):
        ranks, layer = Sharding(group, attend=heads_attention), ENCODER.layers[0]
        return mha.explain(layer, np.ones((1, 4, D)), group=ranks)

    (layer, *_) = results(2, of_layer)
    attention = next(each for each in layer.walk() if each.op == "heads_attention")
    sent = HEADS // 2 * 4 * (D // HEADS) * 8
    assert attention.sent == 4 * sent + HEADS // 2 * 4 * 8  # query, key, value, then out and lse, in half of the heads


def test_what_does_not_fit_ranks_says_so():
    x = normal(1, 4, 24)

    def in_turn(*groups, **settings):
        cache = mha.KeyValueCache(**settings)
        for group in groups:
            TURNING(x, cache=cache, group=group, mask=mha.window(3, 0))

    refused = {
        "dropout by a seed would be the same on all ranks: give keeps= for this rank's part": lambda group: ENCODER(
            x[..., :D], group=Sharding(group), dropout=mha.Dropout(0.1, seed=1)
        ),
        "group is given, but the cache holds all positions: start with an empty cache": lambda group: in_turn(
            None, Sharding(group)
        ),
        "group is given, but the cache rounds positions to int8: use a cache without dtype": lambda group: in_turn(
            Sharding(group), dtype="int8"
        ),
        "group is given, but the cache has a capacity: use a cache without capacity": lambda group: in_turn(
            Sharding(group), capacity=9
        ),
        "group is given, but the cache drops positions: use a cache without window": lambda group: in_turn(
            Sharding(group), window=4
        ),
        "the cache is spread over ranks: give the group that it was filled with": lambda group: in_turn(Sharding(group), None),
        "group and cache are given with context, which is not spread over ranks: leave group": lambda group: PLAIN(
            x, context=x, cache=mha.KeyValueCache(), group=Sharding(group)
        ),
    }
    for message, function in refused.items():
        assert_refused(2, function, ValueError, message)
    message = r"group is Threads; expected mha_core.distributed.Sharding\(group, layout\)"
    assert_refused(2, lambda group: TURNING(x, group=group), TypeError, message)
