"""Caches that grow in place: what is copied, and what is never written again."""

import copy
import pickle
import re
from dataclasses import replace

import numpy as np
import pytest
import torch

import mha_core as mha

LENGTH = 40


@pytest.fixture
def x(rng):
    return rng.normal(size=(2, LENGTH, 8))


@pytest.fixture
def layer():
    return mha.MultiHeadAttention.init(d_model=8, num_heads=2, seed=0, dtype="float64")


def step(layer, x, cache, size=1):
    start = cache.length
    return layer(x[:, start : start + size, :], mask=mha.causal(), cache=cache)


def memory(x):
    return x.__array_interface__["data"][0]


def test_steps_are_written_in_place_and_seldom_copied(layer, x):
    cache, places = mha.KeyValueCache(), []
    outputs = [step(layer, x, cache, size=4)]
    while cache.length < LENGTH:
        outputs.append(step(layer, x, cache))
        places.append((memory(cache.key), memory(cache.value)))
    np.testing.assert_allclose(np.concatenate(outputs, axis=1), layer(x, mask=mha.causal()), rtol=0, atol=1e-13)
    assert len(set(places)) == 3  # room for 10, 22 and 46 positions
    assert not np.shares_memory(cache.key, cache.value)


def test_a_cache_that_another_object_holds_too_is_copied(layer, x):
    """What was handed out never changes, whoever appends to it and however it was made."""
    cache = mha.KeyValueCache()
    for _ in range(5):
        step(layer, x, cache)
    kept = cache.key.copy(), cache.value.copy()
    others = [
        copy.copy(cache),
        copy.deepcopy(cache),
        pickle.loads(pickle.dumps(cache)),
        mha.KeyValueCache(cache.key, cache.value),
    ]
    expected = step(layer, x, cache)
    assert all(other._stores is None for other in others)  # the room behind the positions is not copied
    for other in others:
        step(layer, -x, other)
        np.testing.assert_array_equal(other.key[:, :, :5], kept[0])
        np.testing.assert_array_equal(other.value[:, :, :5], kept[1])
        np.testing.assert_array_equal(other.key[:, :, 5:], -cache.key[:, :, 5:])
    np.testing.assert_array_equal(cache.key[:, :, :5], kept[0])
    cache.key, cache.value = kept  # the step is taken back
    np.testing.assert_array_equal(step(layer, x, cache), expected)


def test_a_cache_that_was_changed_by_hand_is_what_counts(layer, x):
    cache = mha.KeyValueCache()
    for _ in range(5):
        step(layer, x, cache)
    handed_out, last = cache.key, cache.key.copy()
    for change in (lambda y: y[::-1], lambda y: y[:, :, :3]):  # another order of the batch; positions taken back
        cache.key, cache.value = change(cache.key), change(cache.value)
        plain = mha.KeyValueCache(cache.key.copy(), cache.value.copy())
        np.testing.assert_array_equal(step(layer, x, cache), step(layer, x, plain))
        np.testing.assert_array_equal(handed_out, last)


def test_a_failed_step_is_written_again(layer, x):
    cache = mha.KeyValueCache()
    step(layer, x, cache, size=3)
    step(layer, x, cache)
    with pytest.raises(ValueError, match="mask has shape"):
        layer(-x[:, 4:5, :], mask=np.ones((3, 3), dtype=bool), cache=cache)
    step(layer, x, cache)
    expected = mha.KeyValueCache()
    step(layer, x, expected, size=5)
    np.testing.assert_allclose(cache.key, expected.key, rtol=0, atol=1e-14)


def test_new_positions_of_another_dtype_are_not_rounded(layer, x):
    cache = mha.KeyValueCache()
    step(layer, x, cache)
    step(layer, x, cache)
    cache.key = cache.key.astype(np.float32)
    key, value = cache.joined(cache.value, cache.value)
    assert (key.dtype, value.dtype, key.shape[2]) == (np.float64, np.float64, 4)


@pytest.mark.parametrize("sizes", [[1] * LENGTH, [7, 1, 1, 9, 1, 1, 1, 19], [LENGTH]], ids=["one by one", "chunks", "at once"])
@pytest.mark.parametrize("window", [4, 6])
def test_a_window_keeps_the_newest_positions_and_gives_the_same_numbers(backend, rng, sizes, window):
    """Rotary positions are those of the whole sequence; a bias by distance needs no position."""
    plain = mha.MultiHeadAttention.init(d_model=8, num_heads=2, num_kv_heads=1, seed=0, backend=backend.name, dtype="float64")
    layer = replace(
        plain, rotary=mha.Rotary.init(max_length=LENGTH, dim=4, interleaved=True, backend=backend.name, dtype="float64")
    )
    x = backend.from_numpy(rng.normal(size=(2, LENGTH, 8)))
    options = {"mask": mha.window(3, 0), "bias": mha.alibi(2)}
    cache, outputs = mha.KeyValueCache(window=window), []
    for size in sizes:
        start = cache.length
        outputs.append(layer(x[:, start : start + size, :], cache=cache, **options))
        assert cache.key.shape[-2] <= window + size and cache.length == start + size
    got = backend.xp.concat(outputs, axis=1)
    np.testing.assert_allclose(*map(backend.to_numpy, (got, layer(x, **options))), rtol=0, atol=1e-13)


def test_a_window_takes_memory_for_itself_only(rng):
    decoder = mha.Decoder.init(d_model=8, num_heads=2, d_ff=12, num_layers=2, seed=0)
    y, memory = (rng.normal(size=shape).astype(np.float32) for shape in ((100, 8), (5, 8)))
    cache = mha.DecoderCache(window=4)
    outputs = [decoder(y[at : at + 1], memory, mask=mha.window(3, 0), cache=cache) for at in range(100)]
    np.testing.assert_allclose(np.concatenate(outputs), decoder(y, memory, mask=mha.window(3, 0)), rtol=0, atol=1e-5)
    own, of_memory = cache.layers[1]
    assert (cache.length, own.key.shape[-2], of_memory.key.shape[-2]) == (100, 5, 5)
    assert own.key.base.shape[-2] == 10


def test_a_window_refuses_what_may_read_positions_that_it_drops(layer, x):
    far = "the cache keeps the newest 4 positions, and the mask lets queries see older ones: expected mask=mha.window(3, 0)"
    lengths, array = np.asarray([3, 5]), np.ones((1, 1), dtype=bool)
    for message, options in (
        (far, {}),
        (far, {"mask": mha.causal()}),
        (far, {"mask": mha.window(4, 0)}),
        (far, {"mask": array}),
        (far, {"mask": mha.window(3, 0) | mha.window(9, 0)}),
        ("mask depends on more than distances, and the cache drops", {"mask": mha.window(3, 0) & mha.key_lengths(lengths)}),
        ("bias depends on more than distances, and the cache drops", {"mask": mha.window(3, 0), "bias": np.zeros((1, 1))}),
        (
            "weight_dropout depends on more than distances, and the cache drops",
            {"mask": mha.window(3, 0), "weight_dropout": mha.weight_dropout(0.5, seed=0)},
        ),
    ):
        cache = mha.KeyValueCache(window=4)
        with pytest.raises(ValueError, match=re.escape(message)):
            layer(x[:, :1], cache=cache, **options)
        assert cache.length == 0
    for window in (0, 2.0, True):
        with pytest.raises(
            ValueError, match=f"window is {window}; expected an int of at least 1, or None to keep all positions"
        ):
            mha.KeyValueCache(window=window)


def test_sequences_are_taken_out_and_repeated(backend, rng):
    decoder = mha.Decoder.init(d_model=8, num_heads=2, d_ff=12, num_layers=2, seed=0, backend=backend.name, dtype="float64")
    y, memory = (backend.from_numpy(rng.normal(size=shape)) for shape in ((3, 6, 8), (3, 5, 8)))
    indices = backend.from_numpy(np.asarray([2, 0, 2, 2]))
    cache, (chosen, chosen_memory) = mha.DecoderCache(), (backend.xp.take(x, indices, axis=0) for x in (y, memory))
    decoder(y[:, :4, :], memory, cache=cache)
    before = cache.layers[1][0].key
    cache.select(indices)
    outputs = [decoder(chosen[:, at : at + 1, :], chosen_memory, cache=cache) for at in (4, 5)]
    expected = decoder(chosen, chosen_memory)[:, 4:, :]
    np.testing.assert_allclose(*map(backend.to_numpy, (backend.xp.concat(outputs, axis=1), expected)), rtol=0, atol=1e-13)
    assert before.shape[0] == 3 and cache.layers[1][1].key.shape[0] == 4
    with pytest.raises(ValueError, match="the cache holds the keys of another context"):
        decoder(chosen[:, :1, :], chosen_memory + 1, cache=cache)


def test_selecting_from_a_context_selects_the_input_of_its_values_too(layer, x):
    cache, order = mha.KeyValueCache(), np.asarray([1, 0])
    outputs = layer(x[:, :3], context=x, value_context=-x, cache=cache)
    cache.select(order)
    again = layer(x[order, :3], context=x[order], value_context=-x[order], cache=cache)
    np.testing.assert_allclose(again, outputs[order], rtol=0, atol=1e-14)


def test_selecting_needs_a_batch_axis_and_valid_indices(layer, x):
    alone, cache = mha.KeyValueCache(), mha.DecoderCache()
    layer(x[0], cache=alone)
    with pytest.raises(ValueError, match="without a batch axis: expected"):
        alone.select(np.asarray([0]))
    mha.KeyValueCache().select(np.asarray([0]))  # nothing is cached yet
    decoder = mha.Decoder.init(d_model=8, num_heads=2, d_ff=12, num_layers=1, seed=0, dtype="float64")
    decoder(x, x, cache=cache)
    with pytest.raises(IndexError):
        cache.select(np.asarray([0, 2]))
    assert {kept.key.shape[0] for kept in cache.layers[0]} == {2}


# a fixed capacity, and int8


@pytest.mark.parametrize("dtype", [None, "int8"])
def test_a_capacity_is_taken_at_once_and_a_position_too_many_is_refused(layer, x, dtype):
    cache, whole = mha.KeyValueCache(capacity=LENGTH, dtype=dtype), mha.KeyValueCache(dtype=dtype)
    expected = layer(x, mask=mha.causal(), cache=whole)
    outputs, places = [step(layer, x, cache, size=4)], set()
    while cache.length < LENGTH:
        places.add(memory(cache.key if dtype is None else cache.key.values))
        outputs.append(step(layer, x, cache))
    np.testing.assert_allclose(np.concatenate(outputs, axis=1), expected, rtol=0, atol=1e-13)
    assert len(places) == 1
    message = f"the cache has a capacity of {LENGTH} positions and holds {LENGTH}: there is no room for 2 more"
    with pytest.raises(ValueError, match=message):
        layer(x[:, :2], mask=mha.causal(), cache=cache)
    assert cache.length == LENGTH
    with pytest.raises(ValueError, match="a capacity of 3 positions and holds 0: there is no room for 4 more"):
        layer(x[:, :4], cache=mha.KeyValueCache(capacity=3))


@pytest.mark.parametrize("dtype", [None, "int8"])
@pytest.mark.parametrize("mask", [mha.causal(), mha.window(3, 0), None, "array"])
def test_steps_with_the_whole_capacity_are_those_of_a_cache_that_grows(backend, rng, dtype, mask):
    """As in compiled functions, where the number of positions is an array; a position too many gives NaN."""
    xp, to_numpy = backend.xp, backend.to_numpy
    layer = mha.MultiHeadAttention.init(d_model=8, num_heads=2, seed=0, dtype="float64").to(backend.name)
    x = backend.from_numpy(rng.normal(size=(2, 9, 8)))
    cache = mha.KeyValueCache(capacity=9, dtype=dtype, filled=xp.asarray(0))
    grows = mha.KeyValueCache(dtype=dtype)
    for start, stop in ((0, 4), (4, 5), (5, 9)):
        options = {"mask": mask}
        if mask == "array":
            options["mask"] = backend.from_numpy(np.tri(stop - start, 9, start, dtype=bool))
        out = layer(x[:, start:stop, :], cache=cache, **options)
        if mask == "array":
            options["mask"] = backend.from_numpy(np.tri(stop - start, stop, start, dtype=bool))
        expected = layer(x[:, start:stop, :], cache=grows, **options)
        np.testing.assert_allclose(to_numpy(out), to_numpy(expected), rtol=0, atol=1e-13)
        assert int(cache.length) == grows.length and cache.key.shape[-2] == 9
    assert np.isnan(to_numpy(layer(x[:, :1, :], mask=mha.causal(), cache=cache))).all()
    with pytest.raises(ValueError, match="expected the same batch and heads"):
        layer(x[:1, :1, :], mask=mha.causal(), cache=cache)


def test_int8_takes_a_quarter_of_the_memory_of_float32(layer, x):
    caches = [mha.KeyValueCache(dtype=dtype) for dtype in (None, "int8")]
    wide = mha.MultiHeadAttention.init(d_model=256, num_heads=4, seed=0)
    for cache in caches:
        wide(np.zeros((1, 8, 256), dtype=np.float32), cache=cache)
    rows = caches[1].key
    assert (rows.values.nbytes + rows.scale.nbytes) / caches[0].key.nbytes == (64 + 4) / 256


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dtype": "int4"}, "dtype is 'int4'; expected 'int8', or None to keep positions as they are"),
        ({"capacity": 0}, "capacity is 0; expected an int of at least 1, or None to grow"),
        ({"capacity": 4, "window": 2}, "window and capacity are both given: a window bounds memory itself, leave capacity out"),
    ],
)
def test_a_cache_refuses(options, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        mha.KeyValueCache(**options)


def test_torch_s_inference_mode_may_begin_and_end_between_steps(layer, x):
    layer, x, cache = layer.to("torch"), torch.from_numpy(x), mha.KeyValueCache()
    with torch.no_grad():
        whole = layer(x, mask=mha.causal())
        outputs = [step(layer, x, cache, size=2)]
        for mode in (torch.inference_mode(), torch.no_grad(), torch.inference_mode()):
            with mode:
                outputs += [step(layer, x, cache) for _ in range(3)]
    torch.testing.assert_close(torch.cat(outputs, dim=1), whole[:, :11], rtol=0, atol=1e-13)


def test_gradients_of_torch_go_through_a_cache(layer, x):
    layer = layer.to("torch")
    x = torch.from_numpy(x).requires_grad_()
    cache = mha.KeyValueCache()
    outputs = [step(layer, x, cache, size=LENGTH // 4) for _ in range(4)]
    (got,) = torch.autograd.grad(torch.cat(outputs, dim=1).square().sum(), x)
    (expected,) = torch.autograd.grad(layer(x, mask=mha.causal()).square().sum(), x)
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-11)
