"""The operations and layers of mha_cupy, each a sequence of launches and products: right launches, right order, right arrays.

NumPy stands in for CuPy, and the sources run on the host. CuPy itself is not tested.
"""

from dataclasses import replace

import numpy as np
import pytest

import cuda_on_host
import mha_core as mha
from cuda_ops import needs_compiler
from mha_cupy import activations, layers, norms, rotary

pytestmark = needs_compiler


@pytest.fixture(autouse=True)
def numpy_stands_in(monkeypatch):
    for module in (activations, norms, rotary):
        monkeypatch.setattr(module, "run", cuda_on_host.run)
    for module in (activations, norms, rotary, layers):
        monkeypatch.setattr(module, "cupy", np)
    monkeypatch.setattr(layers, "matmul", np.matmul)


def assert_is(got, expected, given):
    """Check float32 results; a result that leaves out a launch would be off by much more."""
    assert got.shape == expected.shape and got.dtype == np.float32
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())
    for x, before in given:
        np.testing.assert_array_equal(x, before)


def check(kernel, operation, *arrays, **options):
    given = [(x, x.copy()) for x in (*arrays, *options.values()) if isinstance(x, np.ndarray)]
    wide = [x.astype(np.float64) if isinstance(x, np.ndarray) else x for x in arrays]
    wide_options = {name: x.astype(np.float64) if isinstance(x, np.ndarray) else x for name, x in options.items()}
    assert_is(kernel(*arrays, **options), operation(*wide, **wide_options), given)


@pytest.fixture
def normal(rng):
    return lambda *shape: rng.normal(size=shape).astype(np.float32)


def test_norms_of_any_axes(normal):
    for x in (normal(6), normal(2, 3, 6), normal(2, 3, 12)[..., ::2], normal(3, 2, 6).swapaxes(0, 1)):
        for weight, bias in ((None, None), (normal(6), None), (None, normal(6)), (normal(6), normal(12)[::2])):
            check(norms.layer_norm, mha.layer_norm, x, weight, bias, eps=0.1)
            check(norms.rms_norm, mha.rms_norm, x, weight, eps=0.1)


def test_activations_of_any_axes(normal):
    for x in (normal(6), normal(2, 3, 5), normal(2, 3, 12)[..., ::2], normal(3, 2, 6).swapaxes(0, 1)):
        check(activations.relu, mha.relu, x)
        check(activations.silu, mha.silu, x)
        for approximate in ("none", "tanh"):
            check(activations.gelu, mha.gelu, x, approximate=approximate)


def test_rotary_with_more_axes_than_its_kernel_supports(normal):
    x = normal(2, 4, 3, 6, 12).transpose(0, 2, 1, 3, 4)[:, :, :, ::2]
    cos, sin = normal(2, 1, 1, 1, 4), normal(3, 1, 3, 4)
    assert len(rotary._merged_axes(x, cos, sin)) > 3
    for interleaved in (False, True):
        check(rotary.rotary, mha.rotary, x, cos, sin, interleaved=interleaved)
        check(rotary.rotary, mha.rotary, normal(3, 24)[:, ::2], normal(3, 8)[:, ::2], normal(4), interleaved=interleaved)


def test_linear(normal):
    w, b = normal(6, 5), normal(10)[::2]
    for x in (normal(6), normal(2, 3, 6), normal(2, 3, 12)[..., ::2]):
        check(layers.linear, mha.linear, x, w, b)
        check(layers.linear, mha.linear, x, w, None)


@pytest.mark.parametrize("activation", ["relu", "gelu", "gelu_tanh", "silu"])
def test_feed_forward(normal, activation):
    x, w_1, w_2, w_g = normal(2, 3, 6), normal(6, 10), normal(10, 5), normal(6, 10)
    for b_1, b_2 in ((None, None), (normal(10), None), (None, normal(5)), (normal(10), normal(5))):
        for gate in ({}, {"w_g": w_g}, {"w_g": w_g, "b_g": normal(10)}):
            check(layers.feed_forward, mha.feed_forward, x, w_1, b_1, w_2, b_2, activation=activation, **gate)


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("shape", [(5, 8), (2, 5, 8), (2, 3, 5, 8)])
def test_encoder_layer(rng, normal, norm_first, shape):
    made = mha.EncoderLayer.init(d_model=8, num_heads=4, d_ff=12, activation="gelu", norm_first=norm_first, seed=1)
    full = made.map(lambda x: x + 0.3 * rng.normal(size=x.shape).astype(np.float32))
    keys = {name: getattr(full.attention, name)[:, :4] for name in ("w_k", "w_v")}
    fewer = replace(full.attention, b_q=None, b_k=None, b_v=None, b_o=None, num_kv_heads=2, **keys)
    bare = replace(full, attention=fewer, norm_2=replace(full.norm_2, weight=None, bias=None))
    x = normal(*shape)
    for layer in (full, bare):
        for options in ({}, {"mask": mha.causal()}):
            given = [(array, array.copy()) for array in (x, *layer.arrays().values())]
            expected = layer.map(lambda array: array.astype(np.float64))(x.astype(np.float64), **options)
            assert_is(layers.encoder_layer(layer, x, **options), expected, given)
