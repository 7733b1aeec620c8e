"""The torch kernel of the encoder layer: correct, and refused for what it does not support."""

import math
from dataclasses import replace

import pytest
import torch

import mha_core as mha
from mha_torch import layers, onednn

SETTINGS = [{"activation": a, "norm_first": first} for a in ("relu", "gelu", "gelu_tanh", "silu") for first in (False, True)]


@pytest.fixture(params=[False, True], ids=["as chosen", "oneDNN"])
def products(request, monkeypatch):
    """Products by torch's default, or by oneDNN for any size."""
    if request.param:
        monkeypatch.setattr(onednn, "_is_faster", lambda: True)
        monkeypatch.setattr(onednn, "_MIN_WORK", 0)


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_the_encoder_layer_is_one_kernel_and_equals_the_algebra(rng, products, settings):
    layer = mha.EncoderLayer.init(d_model=16, num_heads=4, d_ff=24, seed=1, backend="torch", **settings)
    layer = layer.map(lambda w: w + torch.asarray(rng.normal(size=w.shape) * 0.1, dtype=torch.float32))
    x = torch.asarray(rng.normal(size=(2, 7, 16)), dtype=torch.float32)
    before = {name: array.clone() for name, array in {"x": x, **layer.arrays()}.items()}
    for options in ({}, {"mask": mha.causal()}, {"mask": mha.key_lengths(torch.tensor([3, 7])), "bias": mha.alibi(4)}):
        explanation = mha.explain(layer, x, **options)
        assert (explanation.op, explanation.kernel) == ("encoder_layer", "functional")
        with mha.verify() as done:
            layer(x, **options)
        assert done.checked == {("encoder_layer", "functional"): 1, ("attention", "sdpa"): 1}
    for name, array in {"x": x, **layer.arrays()}.items():
        assert torch.equal(array, before[name]), name


@pytest.mark.parametrize("norm_first", [False, True])
def test_the_size_of_chunks_does_not_matter(rng, monkeypatch, norm_first):
    layer = mha.EncoderLayer.init(d_model=16, num_heads=4, d_ff=24, norm_first=norm_first, seed=1, backend="torch")
    x = torch.asarray(rng.normal(size=(3, 7, 16)), dtype=torch.float32)
    given = [x, x[0], x[:0], x.expand(2, 3, 7, 16), x[:1].expand(3, 7, 16), x.mT.contiguous().mT]
    options = {"mask": mha.causal() & mha.key_lengths(torch.tensor([3, 7, 5])), "query_offset": 0}
    whole = [layer(y) for y in given] + [layer(x, **options)]
    monkeypatch.setattr(layers, "_ROWS", 5)
    chunked = [layer(y) for y in given] + [layer(x, **options)]
    for actual, expected in zip(chunked, whole, strict=True):
        torch.testing.assert_close(actual, expected)


def refused():
    x, layer = torch.ones(2, 8), mha.EncoderLayer.init(d_model=8, num_heads=2, d_ff=8, seed=0, backend="torch")
    gradient = "does not handle gradient"
    return {
        "gradient": (layer, x.clone().requires_grad_(), gradient),
        "gradient of a weight": (layer.map(lambda w: w.clone().requires_grad_()), x, gradient),
        "float64": (layer.map(lambda w: w.double()), x.double(), "supports float32 and narrower, not float64"),
    }


@pytest.mark.parametrize("tokens", [1, 31, 32])
def test_few_tokens_and_large_weights_are_computed_by_the_kernel_of_the_linear_map(rng, tokens, monkeypatch):
    layer = mha.FeedForward.init(d_model=512, d_ff=2048, gated=True, activation="silu", seed=0, backend="torch")
    x = torch.asarray(rng.normal(size=(tokens, 512)), dtype=torch.float32)
    assert mha.explain(layer, x).kernel == "inplace"
    calls = []
    monkeypatch.setattr(layers, "chosen_linear", lambda x, w, b: calls.append(tuple(w.shape)) or mha.linear(x, w, b))
    hidden = torch.nn.functional.silu(x @ layer.w_1 + layer.b_1) * (x @ layer.w_g + layer.b_g)
    torch.testing.assert_close(layer(x), hidden @ layer.w_2 + layer.b_2)
    assert calls == ([(512, 2048), (512, 2048), (2048, 512)] if tokens < 32 else [])


@pytest.mark.parametrize("name", refused())
def test_unsupported_layers_are_refused(name):
    layer, x, reason = refused()[name]
    explanation = mha.explain(layer, x)
    assert explanation.kernel is None
    assert explanation.rejected == (("functional", reason),)
    assert len(list(explanation.walk())) > 8


class Doubling:
    """An object with the attributes of a LayerNorm that is not a LayerNorm."""

    weight = bias = None
    eps = 1e-5

    def __call__(self, x):
        return 2 * x


def test_a_sublayer_of_another_class_is_called(rng):
    layer = mha.EncoderLayer.init(d_model=8, num_heads=2, d_ff=8, seed=0, backend="torch")
    x = torch.asarray(rng.normal(size=(3, 8)), dtype=torch.float32)
    changed = replace(layer, norm_2=Doubling(), feed_forward=lambda y: y)
    actual = mha.explain(changed, x)
    assert actual.kernel is None
    assert f"norm_2={__name__}.Doubling" in actual.features
    y = layer.norm_1(x + layer.attention(x))
    torch.testing.assert_close(changed(x), 2 * (y + y))


def test_a_gradient_through_an_option_is_detected(rng):
    layer = mha.EncoderLayer.init(d_model=8, num_heads=2, d_ff=8, seed=0, backend="torch")
    x, bias = torch.ones(3, 8), torch.zeros(2, 3, 3, requires_grad=True)
    actual = mha.explain(layer, x, bias=bias)
    assert "gradient" in actual.features
    assert actual.kernel is None
    (gradient,) = torch.autograd.grad(layer(x + torch.eye(3, 8), bias=bias).square().sum(), bias)
    assert gradient.abs().max() > 0


def test_a_sublayer_of_another_width_is_an_error():
    layer = mha.EncoderLayer.init(d_model=8, num_heads=2, d_ff=8, seed=0, backend="torch")
    narrow = replace(layer, attention=replace(layer.attention, w_o=torch.zeros(8, 1), b_o=None))
    with pytest.raises(ValueError, match="attention returns 1 features; expected 8"):
        narrow(torch.ones(3, 8))


@pytest.mark.parametrize("activation", ["relu", "gelu", "gelu_tanh", "silu"])
def test_hidden_features_that_overflow_are_infinite_as_in_the_algebra(activation):
    x, w, one = (torch.tensor(values) for values in ([[3e38], [-3e38], [math.nan], [1.0]], [[10.0]], [[1.0]]))
    assert mha.explain("feed_forward", x, w, None, one, None, activation=activation).kernel == "inplace"
    actual = mha.feed_forward(x, w, None, one, None, activation=activation)
    assert actual[0] == math.inf and actual[1] == 0 and actual[2].isnan() and actual[3].isfinite()
