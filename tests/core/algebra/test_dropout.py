"""Dropout of attention weights and of sublayers by a seed: the same choices on every backend, in any block, both ways."""

import numpy as np
import pytest
from needs import installed
from normal import normal
from refusals import refusals

import mha_core as mha
from mha_core.algebra import blocks
from mha_core.algebra.dropout import kept_elements, named_seed


def test_choices_do_not_depend_on_blocks_or_masks(monkeypatch):
    q = normal(2, 2, 33, 4)
    options = {"weight_dropout": mha.weight_dropout(0.4, seed=3), "mask": mha.window(20, 0) & mha.packed([20, 13])}
    whole, d = mha.scaled_dot_product_attention(q, q, q, **options), normal(2, 2, 33, 4)
    gradients = mha.vjp(mha.scaled_dot_product_attention, q, q, q, **options)[1](d)
    monkeypatch.setattr(blocks, "_DENSE", 16)
    monkeypatch.setattr(blocks, "_BLOCK", 64)
    with mha.use_kernel("attention", "algebra"), mha.use_kernel("attention_vjp", "algebra"):
        np.testing.assert_allclose(mha.scaled_dot_product_attention(q, q, q, **options), whole, atol=1e-14)
        for gradient, expected in zip(
            mha.vjp(mha.scaled_dot_product_attention, q, q, q, **options)[1](d), gradients, strict=True
        ):
            np.testing.assert_allclose(gradient, expected, atol=1e-13)
    weights = mha.attention_weights(q, q, **options)
    np.testing.assert_allclose(weights @ q, whole, atol=1e-14)
    lse = mha.attention_state(q, q, q, **options).lse
    for rows, cols in ((slice(5, 30, 3), slice(4, 31)), ([30, 7], [0, 32, 9])):
        for known in (None, lse):
            part = mha.attention_weights(q, q, known, rows=rows, cols=cols, **options)
            np.testing.assert_allclose(part, weights[..., rows, :][..., cols], atol=1e-14)


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


def dropped(make):
    return lambda: mha.scaled_dot_product_attention(*[normal(3, 4)] * 3, weight_dropout=make())


test_bad_input_gets_a_clear_error = refusals(
    {
        TypeError: {
            "rate is str": lambda: mha.weight_dropout("0.1", seed=0),
            "neither of seed= and keep=": lambda: mha.weight_dropout(0.1),
            "both of seed= and keep=": lambda: mha.weight_dropout(0.1, seed=0, keep=np.ones(1, bool)),
            "seed is float": lambda: mha.weight_dropout(0.1, seed=0.5),
            "weight_dropout(keep) is list": lambda: mha.weight_dropout(0.1, keep=[True]),
            "weight_dropout(keep) has dtype int64": dropped(lambda: mha.weight_dropout(0.1, keep=np.ones((3, 3), int))),
            "weight_dropout is float; expected mha.weight_dropout": dropped(lambda: 0.1),
            "keep has dtype float64; expected a boolean array": lambda: mha.dropout(np.ones(3), np.ones(3), rate=0.2),
        },
        ValueError: {
            "rate is 1.0; expected at least 0 and below 1": lambda: mha.weight_dropout(1.0, seed=0),
            "rate is 1; expected at least 0 and below 1": lambda: mha.dropout(np.ones(3), np.ones(3, bool), rate=1),
            "seed is -1": lambda: mha.weight_dropout(0.1, seed=-1),
            "weight_dropout(keep) has shape (4, 3)": dropped(lambda: mha.weight_dropout(0.1, keep=np.ones((4, 3), bool))),
            "has no seed": lambda: mha.Dropout(0.1, weights=0.1),
        },
    }
)
