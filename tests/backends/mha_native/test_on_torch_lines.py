"""Layers of torch tensors with int8 weights: computed as a whole, with the bits of NumPy arrays, for any number of threads."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from native import needs_native

import mha_core as mha
from mha_core.ops.tree import map_arrays

pytestmark = [needs_native, pytest.mark.usefixtures("native")]


LAYERS = {
    "post-norm": lambda: mha.EncoderLayer.init(d_model=16, num_heads=2, d_ff=32, activation="gelu", seed=0),
    "pre-norm": lambda: mha.EncoderLayer.init(d_model=16, num_heads=4, d_ff=32, activation="silu", norm_first=True, seed=1),
    "network": lambda: mha.FeedForward.init(d_model=16, d_ff=40, activation="gelu_tanh", seed=2),
    "gate": lambda: mha.FeedForward.init(d_model=16, d_ff=24, gated=True, seed=3),
}
SHAPES = [(1, 16), (70, 16), (40, 5, 16), (2, 3, 100, 16), (3, 1100, 16)]


def made(name):
    """Return a layer whose biases are not 0 and weights of norms not 1, as they begin: that would hide mistakes."""
    rng = np.random.default_rng(0)
    return map_arrays(LAYERS[name](), lambda x: x + rng.normal(scale=0.3, size=x.shape).astype(np.float32))


@pytest.fixture
def threads():
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", LAYERS)
def test_the_bits_are_those_of_numpy_arrays_on_any_number_of_threads(rng, threads, name, shape):
    layer = made(name).quantized()
    there, x = layer.to("torch"), rng.normal(size=shape).astype(np.float32)
    op = "encoder_layer" if isinstance(layer, mha.EncoderLayer) else "feed_forward"
    assert str(mha.explain(there, torch.from_numpy(x))).startswith(f"{op}: native (")
    for count in (1, 2, 3):
        threads(count)
        np.testing.assert_array_equal(there(torch.from_numpy(x)).numpy(), layer(x))


@pytest.mark.parametrize(
    "options",
    [
        lambda: {"mask": mha.causal() & mha.window(9, 0)},
        lambda: {"mask": mha.key_lengths(torch.asarray([30, 7]))},
        lambda: {"mask": mha.mask_function(lambda b, h, i, j: (i + j + b) % 3 != 1), "bias": mha.alibi(2)},
        lambda: {"mask": torch.rand(2, 1, 30, 30) < 0.9, "bias": torch.randn(2, 2, 30, 30), "softcap": 3.0},
        lambda: {"sink": torch.randn(2)},
    ],
    ids=["band", "lengths", "function", "arrays", "sink"],
)
def test_every_option_is_that_of_tensors(options):
    torch.manual_seed(0)
    layer, x, given = made("post-norm").quantized().to("torch"), torch.randn(2, 30, 16), options()
    assert str(mha.explain(layer, x, **given)).startswith("encoder_layer: native (")
    with mha.use_kernel("encoder_layer", "algebra"):
        expected = layer(x, **given)
    assert (abs(layer(x, **given) - expected) < 1e-5).float().mean() > 0.9  # others are a step of an integer apart


@pytest.mark.parametrize("negative", [False, True])
def test_weights_that_are_no_integers_are_multiplied_by_torch(negative):
    torch.manual_seed(0)
    layer = made("network").to("torch")
    w = torch.complex(layer.w_2, -layer.w_2).conj().imag if negative else layer.w_2
    assert w.is_neg() == negative
    mixed = replace(layer.quantized(), w_2=w)
    x = torch.randn(50, 16)
    assert str(mha.explain(mixed, x)).startswith("feed_forward: native (")
    with mha.use_kernel("feed_forward", "algebra"):
        expected = mixed(x)
    assert (abs(mixed(x) - expected) < 1e-5).float().mean() > 0.9


def test_views_are_read_and_nothing_is_written():
    torch.manual_seed(0)
    layer, x = made("pre-norm").quantized().to("torch"), torch.randn(16, 40, 2)
    before, view = x.clone(), x.permute(2, 1, 0)
    assert torch.equal(layer(view), layer(view.contiguous())) and torch.equal(x, before)
    negative = torch._neg_view(view.contiguous())
    assert negative.is_neg() and torch.equal(layer(negative), layer(-view))
    parameters = torch.nn.Parameter(view)
    with torch.no_grad():
        assert torch.equal(layer(parameters), layer(view))
    with torch.inference_mode():
        assert torch.equal(layer(view.clone()), layer(view))


def test_what_it_lacks_it_refuses(monkeypatch):
    from mha_native import on_torch_lines

    floats, layer = made("network").to("torch"), made("network").quantized().to("torch")
    meta = made("network").quantized().to("torch", device="meta")
    for each, x, reason in (
        (floats, torch.ones(40, 16), "computes with int8 weights; torch's own layers compute with others"),
        (meta, torch.ones(40, 16, device="meta"), "computes on the CPU, not on meta"),
    ):
        assert f"not native: {reason}" in str(mha.explain(each, x))
    monkeypatch.setattr(on_torch_lines, "team", lambda: 0)
    reason = "computes on the threads of GNU's OpenMP, which this torch does not use"
    assert f"not native: {reason}" in str(mha.explain(layer, torch.ones(41, 16)))
