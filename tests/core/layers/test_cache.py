"""Caches that grow in place: what is copied, and what is never written again."""

import copy
import pickle

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
