"""Caches of several sequences of different lengths: any schedule of steps gives the results of one pass over each."""

from dataclasses import replace

import numpy as np
import pytest
from judged_attention import normal

import mha_core as mha

LENGTH, WIDTH = 23, 32


def attention(backend):
    layer = mha.MultiHeadAttention.init(d_model=WIDTH, num_heads=4, num_kv_heads=2, seed=0, backend="numpy")
    rotary = mha.Rotary.init(max_length=64, dim=8, interleaved=False, backend="numpy")
    return replace(layer, rotary=rotary).to(backend.name)


def by_steps(call, backend, sequences, caches, rng):
    """Return the results of all sequences, in steps with a random number of new positions of each, some with none."""
    at, parts = [0] * len(sequences), [[] for _ in sequences]
    while min(at) < LENGTH:
        lengths = [min(LENGTH - start, int(rng.integers(0, 5))) for start in at]
        if not any(lengths):
            continue
        steps = [sequence[start : start + n] for sequence, start, n in zip(sequences, at, lengths, strict=True)]
        y = backend.to_numpy(call(backend.from_numpy(np.concatenate(steps)), [cache.next(lengths) for cache in caches]))
        for part, rows in zip(parts, np.split(y, np.cumsum(lengths)[:-1]), strict=True):
            part.append(rows)
        at = [start + n for start, n in zip(at, lengths, strict=True)]
    return [np.concatenate(part) for part in parts]


@pytest.mark.parametrize("window", [None, 5])
@pytest.mark.parametrize("seed", range(3))
def test_steps_of_any_lengths_give_one_pass_over_each(backend, rng, window, seed):
    layer, mask = attention(backend), mha.causal() if window is None else mha.window(window - 1, 0)
    sequences = [normal(rng, LENGTH, WIDTH) for _ in range(4)]
    cache = mha.PackedCache(4, window=window)
    got = by_steps(lambda x, caches: layer(x, mask=mask, cache=caches[0]), backend, sequences, [cache], rng)
    for out, sequence in zip(got, sequences, strict=True):
        np.testing.assert_allclose(out, backend.to_numpy(layer(backend.from_numpy(sequence), mask=mask)), rtol=0, atol=2e-6)
    assert cache.lengths == [LENGTH] * 4
    assert all(window is None or own.key.shape[-2] < window + 5 for own in cache.sequences)


def test_a_causal_encoder_decodes_several_sequences(backend, rng):
    encoder = mha.Encoder.init(d_model=WIDTH, num_heads=4, d_ff=40, num_layers=2, seed=1, backend=backend.name)
    sequences = [normal(rng, LENGTH, WIDTH) for _ in range(3)]

    def call(x, caches):
        for layer, cache in zip(encoder.layers, caches, strict=True):
            x = layer(x, mask=mha.causal(), cache=cache)
        return x

    got = by_steps(call, backend, sequences, [mha.PackedCache(3) for _ in encoder.layers], rng)
    for out, sequence in zip(got, sequences, strict=True):
        whole = backend.to_numpy(encoder(backend.from_numpy(sequence), mask=mha.causal()))
        np.testing.assert_allclose(out, whole, rtol=0, atol=5e-6)


def test_an_encoder_with_a_decoder_cache_goes_on_where_it_was(backend, rng):
    encoder = mha.Encoder.init(d_model=WIDTH, num_heads=4, d_ff=40, num_layers=2, norm_first=True, seed=1, backend=backend.name)
    x, cache = normal(rng, 2, LENGTH, WIDTH), mha.DecoderCache()
    parts = [encoder(backend.from_numpy(x[:, at : at + 4]), mask=mha.causal(), cache=cache) for at in range(0, LENGTH, 4)]
    whole = backend.to_numpy(encoder(backend.from_numpy(x), mask=mha.causal()))
    np.testing.assert_allclose(np.concatenate(list(map(backend.to_numpy, parts)), axis=1), whole, rtol=0, atol=5e-6)
    assert cache.length == LENGTH


def test_selected_sequences_go_on_each_for_itself(backend, rng):
    layer, x = attention(backend), [normal(rng, n, WIDTH) for n in (6, 3, 9)]
    more = [normal(rng, 2, WIDTH) for _ in range(3)]
    cache = mha.PackedCache(3)
    layer(backend.from_numpy(np.concatenate(x)), mask=mha.causal(), cache=cache.next([6, 3, 9]))
    cache.select([2, 0, 2])
    for step in range(2):
        rows = backend.from_numpy(np.stack([each[step] for each in more]))
        last = layer(rows, mask=mha.causal(), cache=cache.next([1, 1, 1]))
    for at, (source, new) in enumerate(zip((2, 0, 2), more, strict=True)):
        whole = layer(backend.from_numpy(np.concatenate([x[source], new])), mask=mha.causal())
        np.testing.assert_allclose(backend.to_numpy(last)[at], backend.to_numpy(whole)[-1], rtol=0, atol=2e-6)
    assert cache.lengths == [11, 8, 11]


def test_a_sequence_may_begin_later(rng):
    layer, cache, x = mha.MultiHeadAttention.init(d_model=8, num_heads=2, seed=0), mha.PackedCache(1), normal(rng, 4, 8)
    layer(x[:2], mask=mha.causal(), cache=cache.next([2]))
    cache.sequences.append(mha.KeyValueCache())
    out = layer(x[[2, 0, 1]], mask=mha.causal(), cache=cache.next([1, 2]))
    np.testing.assert_allclose(out, layer(x, mask=mha.causal())[[2, 0, 1]], rtol=0, atol=2e-6)
    assert repr(cache) == "PackedCache(lengths=[3, 2], window=None, dtype=None)"


def test_a_call_that_fails_leaves_all_sequences_as_they_were(rng):
    layer, cache, x = mha.MultiHeadAttention.init(d_model=8, num_heads=2, seed=0), mha.PackedCache(2), normal(rng, 5, 8)
    layer(x, mask=mha.causal(), cache=cache.next([3, 2]))
    before = [own.key for own in cache.sequences]
    cache.sequences[1].value = cache.sequences[1].value[..., :3]  # the second sequence fails, after the first has succeeded
    with pytest.raises(ValueError, match="broadcast"):
        layer(x, mask=mha.causal(), cache=cache.next([2, 3]))
    assert cache.lengths == [3, 2] and all(own.key is key for own, key in zip(cache.sequences, before, strict=True))


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda layer, x, cache: cache.next([5]), ValueError, "lengths has 1 numbers; expected 2, one for each sequence"),
        (
            lambda layer, x, cache: cache.next([0, 0]),
            ValueError,
            r"lengths is \[0, 0\]; expected the new positions of at least",
        ),
        (lambda layer, x, cache: cache.next([1, -1]), ValueError, r"lengths\[1\] is -1"),
        (lambda layer, x, cache: cache.select([2]), IndexError, "list index out of range"),
        (
            lambda layer, x, cache: layer(x, cache=cache.next([3, 3])),
            ValueError,
            r"x has positions \(5,\); expected \(6,\): those of 2 sequences end to end, of lengths 3, 3",
        ),
        (lambda layer, x, cache: layer(x[None], cache=cache.next([3, 2])), ValueError, r"x has positions \(1, 5\)"),
        (
            lambda layer, x, cache: layer(x, mask=np.ones((5, 5), dtype=bool), cache=cache.next([3, 2])),
            ValueError,
            "mask depends on more than distances, and the cache holds several sequences: use a KeyValueCache for each",
        ),
        (
            lambda layer, x, cache: layer(x, bias=np.ones((5, 5), dtype=x.dtype), cache=cache.next([3, 2])),
            ValueError,
            "bias depends on more than distances, and the cache holds several sequences",
        ),
        (
            lambda layer, x, cache: layer(x, cache=cache),
            TypeError,
            r"PackedCache; expected a KeyValueCache, or what next\(lengths\)",
        ),
        (lambda layer, x, cache: layer(x, context=x, cache=cache.next([3, 2])), ValueError, "leave context and group out"),
        (lambda layer, x, cache: mha.vjp(layer, x, cache=cache.next([3, 2])), ValueError, "leave cache out"),
    ],
)
def test_what_it_refuses(rng, call, error, message):
    layer = mha.MultiHeadAttention.init(d_model=8, num_heads=2, seed=0)
    with pytest.raises(error, match=message):
        call(layer, normal(rng, 5, 8), mha.PackedCache(2))
