"""Dropout of attention weights and of sublayers by a seed: the same choices on every backend, in any block, both ways."""

import numpy as np
import pytest
from needs import installed

import mha_core as mha
from mha_core.algebra import blocks
from mha_core.algebra.dropout import kept_elements, named_seed

SEED = 20261123


def normal(*shape):
    return np.random.default_rng(SEED).standard_normal(shape)


def dense(q, k, v, keep, rate):
    """Return attention whose weights are dropped, from the formula."""
    s = q @ np.swapaxes(k, -1, -2) / np.sqrt(q.shape[-1])
    w = np.exp(s - s.max(-1, keepdims=True))
    w = w / w.sum(-1, keepdims=True)
    return np.where(keep, w / (1 - rate), 0) @ v


def test_kept_weights_are_divided_and_the_others_are_0():
    q, k = normal(2, 3, 5, 4), normal(2, 3, 7, 4)
    keep = np.random.default_rng(SEED).random((2, 3, 5, 7)) > 0.25
    found = mha.attention_state(q, k, k, weight_dropout=mha.weight_dropout(0.25, keep=keep))
    np.testing.assert_allclose(found.out, dense(q, k, k, keep, 0.25), atol=1e-14)
    np.testing.assert_allclose(found.lse, mha.attention_state(q, k, k).lse, atol=1e-14)


def test_choices_do_not_depend_on_blocks_or_masks(monkeypatch):
    q = normal(2, 2, 33, 4)
    options = {"weight_dropout": mha.weight_dropout(0.4, seed=3), "mask": mha.window(20, 0) & mha.packed([20, 13])}
    whole, d = mha.scaled_dot_product_attention(q, q, q, **options), normal(2, 2, 33, 4)
    gradients = mha.vjp(mha.scaled_dot_product_attention, q, q, q, **options)[1](d)
    monkeypatch.setattr(blocks, "_DENSE", 16)
    monkeypatch.setattr(blocks, "_BLOCK", 64)
    with mha.use_kernel("attention", "algebra"), mha.use_kernel("attention_vjp", "algebra"):
        np.testing.assert_allclose(mha.scaled_dot_product_attention(q, q, q, **options), whole, atol=1e-14)
        for found, expected in zip(mha.vjp(mha.scaled_dot_product_attention, q, q, q, **options)[1](d), gradients, strict=True):
            np.testing.assert_allclose(found, expected, atol=1e-13)
    weights = mha.attention_weights(q, q, **options)
    np.testing.assert_allclose(weights @ q, whole, atol=1e-14)


def test_the_gradient_is_that_of_the_function():
    q, k, v, d = normal(1, 2, 4, 3), normal(1, 2, 5, 3), normal(1, 2, 5, 3) + 1, normal(1, 2, 4, 3)
    drop = mha.weight_dropout(0.5, seed=11)

    def loss(q, k, v):
        return np.sum(mha.scaled_dot_product_attention(q, k, v, weight_dropout=drop) * d)

    arrays, step = [q, k, v], 1e-6
    for at, found in enumerate(mha.vjp(mha.scaled_dot_product_attention, *arrays, weight_dropout=drop)[1](d)):
        direction = normal(*arrays[at].shape)
        moved = [[x + sign * step * direction if i == at else x for i, x in enumerate(arrays)] for sign in (1, -1)]
        assert (loss(*moved[0]) - loss(*moved[1])) / (2 * step) == pytest.approx(np.sum(found * direction), rel=1e-6)


@pytest.mark.parametrize("name", [pytest.param(name, marks=installed(name)) for name in ("torch", "array_api_strict", "jax")])
def test_choices_are_the_same_in_every_library(name):
    import importlib

    xp = importlib.import_module("jax.numpy" if name == "jax" else name)
    here = kept_elements(np, np.zeros((300, 70)), 0.3, 12345)
    there = np.asarray(kept_elements(xp, xp.zeros((300, 70)), 0.3, 12345))
    np.testing.assert_array_equal(here, there)


def test_choices_look_random():
    """Within 5 standard deviations: the share that is kept, also beside another kept one, and for another seed or name."""
    keep = kept_elements(np, np.zeros((1000, 1000)), 0.3, 1)
    other = kept_elements(np, np.zeros((1000, 1000)), 0.3, 2)
    tolerance = 5 * np.sqrt(0.7 * 0.3 / 4e5)
    for share in (keep.mean(), keep[:, 1:][keep[:, :-1]].mean(), keep[1:][keep[:-1]].mean(), keep[other].mean()):
        assert share == pytest.approx(0.7, abs=tolerance)
    assert max(abs(keep.mean(axis) - 0.7).max() for axis in (0, 1)) < 6 * np.sqrt(0.21 / 1000)
    assert len({named_seed(7, name) for name in map(str, range(1000))}) == 1000
    assert named_seed(7, "a") != named_seed(7 + 2**64, "a")


@installed("torch")
def test_layers_drop_by_a_seed_the_same_on_every_backend():
    import torch

    model = mha.Encoder.init(d_model=8, num_heads=2, d_ff=8, num_layers=2, seed=0, dtype="float64")
    x, drop = normal(3, 5, 8), mha.Dropout(0.2, seed=5, weights=0.3)
    here = model(x, dropout=drop)
    np.testing.assert_allclose(here, model.to("torch")(torch.asarray(x), dropout=drop).numpy(), atol=1e-12)
    assert np.abs(here - model(x, dropout=mha.Dropout(0.2, seed=5))).max() > 0.01  # weights are dropped too
    assert np.abs(here - model(x, dropout=mha.Dropout(0.2, seed=6, weights=0.3))).max() > 0.01
    first, second = (drop.within(f"layers.{at}.") for at in range(2))
    assert first.seed != second.seed
    decoder = mha.Decoder.init(d_model=8, num_heads=2, d_ff=8, num_layers=1, seed=0, dtype="float64")
    assert np.abs(decoder(x, x, dropout=drop) - decoder(x, x)).max() > 0.01


def test_a_keep_given_by_name_takes_the_place_of_the_seed():
    layer, x = mha.EncoderLayer.init(d_model=8, num_heads=2, d_ff=8, seed=0, dtype="float64"), normal(5, 8)
    everything = {name: np.ones((5, 8), bool) for name in layer.sublayers}
    np.testing.assert_allclose(layer(x, dropout=mha.Dropout(0.0, everything, seed=1)), layer(x), atol=1e-13)


ERRORS = {
    "rate is 1.0; expected at least 0 and below 1": (ValueError, lambda: mha.weight_dropout(1.0, seed=0)),
    "rate is str": (TypeError, lambda: mha.weight_dropout("0.1", seed=0)),
    "neither of seed= and keep=": (TypeError, lambda: mha.weight_dropout(0.1)),
    "both of seed= and keep=": (TypeError, lambda: mha.weight_dropout(0.1, seed=0, keep=np.ones(1, bool))),
    "seed is -1": (ValueError, lambda: mha.weight_dropout(0.1, seed=-1)),
    "seed is float": (TypeError, lambda: mha.weight_dropout(0.1, seed=0.5)),
    r"weight_dropout\(keep\) is list": (TypeError, lambda: mha.weight_dropout(0.1, keep=[True])),
    r"weight_dropout\(keep\) has dtype int64": (
        TypeError,
        lambda: attended(mha.weight_dropout(0.1, keep=np.ones((3, 3), int))),
    ),
    r"weight_dropout\(keep\) has shape \(4, 3\)": (
        ValueError,
        lambda: attended(mha.weight_dropout(0.1, keep=np.ones((4, 3), bool))),
    ),
    "weight_dropout is float; expected mha.weight_dropout": (TypeError, lambda: attended(0.1)),
    "has no seed": (ValueError, lambda: mha.Dropout(0.1, weights=0.1)),
}


def attended(drop):
    x = normal(3, 4)
    return mha.scaled_dot_product_attention(x, x, x, weight_dropout=drop)


@pytest.mark.parametrize(("message", "kind_and_call"), ERRORS.items(), ids=range(len(ERRORS)))
def test_bad_input_gets_a_clear_error(message, kind_and_call):
    kind, call = kind_and_call
    with pytest.raises(kind, match=message):
        call()
