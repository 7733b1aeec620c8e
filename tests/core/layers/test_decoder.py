"""Decoders and their caches, rotary positions, gated feed-forward and dropout."""

import math

import numpy as np
import pytest
from refusals import refusals

import mha_core as mha

SMALL = {"d_model": 8, "num_heads": 2, "d_ff": 12}


def arrays(backend, rng, *shapes):
    return [backend.from_numpy(rng.normal(size=shape)) for shape in shapes]


def close(backend, a, b, atol=1e-13):
    np.testing.assert_allclose(backend.to_numpy(a), backend.to_numpy(b), rtol=0, atol=atol)


@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("steps", [[1] * 6, [3, 1, 2], [6]])
def test_decoding_with_a_cache_equals_one_pass(backend, rng, norm_first, steps):
    decoder = mha.Decoder.init(**SMALL, num_layers=2, norm_first=norm_first, seed=0, backend=backend.name, dtype="float64")
    y, memory = arrays(backend, rng, (2, 6, 8), (2, 5, 8))
    memory_mask = mha.key_lengths(backend.from_numpy(np.asarray([3, 5])))
    for mask in (None, mha.window(2, 0)):
        whole = decoder(y, memory, mask=mask, memory_mask=memory_mask)
        cache, parts, at = mha.DecoderCache(), [], 0
        for size in steps:
            part = y[:, at : at + size, :]
            parts.append(decoder(part, memory, mask=mask, memory_mask=memory_mask, cache=cache))
            at += size
        assert cache.length == 6
        close(backend, backend.xp.concat(parts, axis=1), whole)


def test_a_failed_step_leaves_the_cache_unchanged(backend, rng):
    decoder = mha.Decoder.init(**SMALL, num_layers=2, seed=0, backend=backend.name, dtype="float64")
    y, memory = arrays(backend, rng, (6, 8), (5, 8))
    bad, cache, outputs = backend.from_numpy(np.ones((3, 3), dtype=bool)), mha.DecoderCache(), []
    for part in (y[:2, :], y[2:, :]):
        length = cache.length
        with pytest.raises(ValueError, match="mask has shape"):
            decoder(part, memory, cache=cache, memory_mask=bad)
        assert cache.length == length
        outputs.append(decoder(part, memory, cache=cache))
    close(backend, backend.xp.concat(outputs, axis=0), decoder(y, memory))


def test_a_failed_call_leaves_every_kind_of_cache_unchanged(backend, rng):
    layer = mha.DecoderLayer.init(**SMALL, seed=0, backend=backend.name, dtype="float64")
    y, memory, other = arrays(backend, rng, (2, 8), (5, 8), (5, 8))
    bad, of_queries, of_memory = backend.from_numpy(np.ones((1, 9), dtype=bool)), mha.KeyValueCache(), mha.KeyValueCache()
    for call in (
        lambda: layer.self_attention(y, cache=of_queries, mask=bad),
        lambda: layer.cross_attention(y, context=memory, cache=of_memory, mask=bad),
        lambda: layer(y, memory, cache=(of_queries, of_memory), memory_mask=bad),
    ):
        with pytest.raises(ValueError, match="mask has shape"):
            call()
    assert of_queries.length == of_memory.length == 0
    layer(y, other, cache=(of_queries, of_memory))
    assert (of_queries.length, of_memory.length) == (2, 5)
    with pytest.raises(ValueError, match="the cache holds the keys of a context"):
        layer.self_attention(y, cache=of_memory)


def test_a_cache_refuses_what_another_layer_or_value_context_computed(backend, rng):
    first, second = (
        mha.MultiHeadAttention.init(d_model=8, num_heads=2, seed=n, backend=backend.name, dtype="float64") for n in (0, 1)
    )
    y, memory, other = arrays(backend, rng, (2, 8), (5, 8), (5, 8))
    weights = [getattr(first, name) for name in ("w_q", "w_k", "w_v", "w_o")]

    def attend(cache, value_context=None):
        return mha.multi_head_attention(y, *weights, 2, context=memory, value_context=value_context, cache=cache)

    cache = mha.KeyValueCache()
    plain = attend(cache)
    with pytest.raises(ValueError, match="computed with another value_context"):
        attend(cache, other)
    with pytest.raises(ValueError, match="computed with another w_k: each layer needs its own cache"):
        second(y, context=memory, cache=cache)
    close(backend, attend(cache), plain, atol=0)
    weights = [backend.xp.concat([w], axis=0) for w in weights]  # equal weights in other memory are the same layer
    close(backend, attend(cache), plain, atol=0)
    weights[1] = backend.xp.where(weights[1] > 0, math.nan, weights[1])  # so are weights with NaN at the same places
    broken = mha.KeyValueCache()
    attend(broken)
    weights[1] = backend.xp.concat([weights[1]], axis=0)
    attend(broken)
    cache = mha.KeyValueCache()
    first(y, cache=cache)
    with pytest.raises(ValueError, match="computed with another w_k"):
        second(y, cache=cache)
    assert cache.length == 2


def test_a_cache_refuses_another_sequence(backend, rng):
    decoder = mha.Decoder.init(**SMALL, num_layers=1, seed=0, backend=backend.name, dtype="float64")
    y, pair, memory, other = arrays(backend, rng, (2, 8), (2, 2, 8), (5, 8), (5, 8))
    cache = mha.DecoderCache()
    decoder(y, memory, cache=cache)
    with pytest.raises(ValueError, match="the cache holds the keys of another context"):
        decoder(y, other, cache=cache)
    with pytest.raises(ValueError, match="expected the same batch and heads"):
        decoder(pair, memory, cache=cache)
    with pytest.raises(ValueError, match="the cache has 1 layers; expected 2, the layers of this decoder"):
        mha.Decoder((decoder.layers[0],) * 2)(y, memory, cache=cache)
    with pytest.raises(ValueError, match="query_offset is given with cache"):
        decoder.layers[0].self_attention(y, cache=mha.KeyValueCache(), query_offset=0)
    assert cache.length == 2


def test_rotary_attention_with_a_cache_and_offsets(backend, rng):
    plain = mha.MultiHeadAttention.init(d_model=8, num_heads=2, num_kv_heads=1, seed=0, backend=backend.name, dtype="float64")
    turning = mha.Rotary.init(max_length=9, dim=4, interleaved=True, backend=backend.name, dtype="float64")
    attention = type(plain)(**{**vars(plain), "rotary": turning})
    (x,) = arrays(backend, rng, (2, 6, 8))
    whole = attention(x, mask=mha.causal())
    assert np.abs(backend.to_numpy(whole) - backend.to_numpy(plain(x, mask=mha.causal()))).max() > 1e-3
    cache = mha.KeyValueCache()
    parts = [attention(x[:, at : at + 2, :], mask=mha.causal(), cache=cache) for at in (0, 2, 4)]
    close(backend, backend.xp.concat(parts, axis=1), whole)
    offsets = backend.from_numpy(np.asarray([0, 3]))
    heads = backend.xp.reshape(x, (2, 6, 2, 4))
    heads = backend.xp.moveaxis(heads, 2, 1)
    turned = turning(heads, offsets)
    close(backend, turned[0, ...], turning(heads[0, ...], 0))
    close(backend, turned[1, ...], turning(heads[1, ...], 3))
    outside = backend.to_numpy(turning(heads, backend.from_numpy(np.asarray([-1, 8]))))
    assert np.isnan(outside[0, :, 0, :4]).all() and np.isfinite(outside[0, :, 1:]).all() and np.isfinite(outside[..., 4:]).all()
    assert np.isfinite(outside[1, :, 0]).all() and np.isnan(outside[1, :, 1:, :4]).all()
    close(backend, turning(heads[0, ...], np.int64(3)), turning(heads[0, ...], 3), atol=0)
    with pytest.raises(ValueError, match="rotary and context are both given"):
        attention.weights(x, context=x)
    with pytest.raises(ValueError, match="positions 6 to 11 are outside the rotary tables, which hold 0 to 8"):
        turning(heads, 6)
    with pytest.raises(ValueError, match="rotary and context are both given"):
        attention(x, context=x)


def test_dropout_applies_to_the_sublayers_it_names(backend, rng):
    encoder = mha.Encoder.init(**SMALL, num_layers=2, norm_first=True, seed=0, backend=backend.name, dtype="float64")
    (x,) = arrays(backend, rng, (3, 8))
    none = backend.from_numpy(np.zeros((3, 8), dtype=bool))
    names = [f"layers.{at}.{name}" for at in range(2) for name in ("attention", "feed_forward")]
    gone = encoder(x, dropout=mha.Dropout(0.5, dict.fromkeys(names, none)))
    close(backend, gone, encoder.norm(x))  # every sublayer is dropped entirely: only the residual is left
    only_last = encoder(x, dropout=mha.Dropout(0.5, {"layers.1.feed_forward": none}))
    first = encoder.layers[0](x)
    close(backend, only_last, encoder.norm(first + encoder.layers[1].attention(encoder.layers[1].norm_1(first))))
    with pytest.raises(ValueError, match=r"dropout has keeps for layers\.2\.attention; expected some of layers\.0\.attention"):
        encoder(x, dropout=mha.Dropout(0.5, {"layers.2.attention": none}))


def turned(**change):
    arguments = {"x": np.ones((2, 3, 4)), "cos": np.ones((3, 2)), "sin": np.ones((3, 2)), "interleaved": True}
    return lambda: mha.rotary(**(arguments | change))


test_bad_rotary_tables_are_refused_by_name = refusals(
    {
        ValueError: {
            "cos has 3 angles, for 6 features, but x has 4": turned(cos=np.ones((3, 3))),
            "cos has shape (4, 2); expected a shape that broadcasts to (..., L, r / 2)": turned(cos=np.ones((4, 2))),
            "sin has shape (3, 1), but cos has (3, 2)": turned(sin=np.ones((3, 1))),
        }
    }
)
