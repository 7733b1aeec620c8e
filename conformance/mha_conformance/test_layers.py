"""Layers against the same formulas in NumPy float64, and conversion of layers between libraries."""

from __future__ import annotations

import numpy as np
import pytest

import mha_core as mha

from .backend import BackendUnderTest
from .cases.layers import SMALL, assert_computes, perturbed
from .oracle.layer_gradients import LayerGradients

pytestmark = pytest.mark.promise(0, 9)
NORM_FIRST = pytest.mark.parametrize("norm_first", [False, True], ids=["post-norm", "pre-norm"])


@pytest.mark.parametrize("kv_heads", [4, 2, 1])
def test_multi_head_attention(backend: BackendUnderTest, dtype: str, rng: np.random.Generator, kv_heads: int) -> None:
    made = mha.MultiHeadAttention.init(d_model=16, num_heads=4, num_kv_heads=kv_heads, d_context=12, seed=1)
    exact, layer = perturbed(backend, made, dtype, rng)
    x, context = (backend.rounded(rng.normal(size=shape), dtype) for shape in [(5, 16), (7, 12)])
    there, allowed = backend.array(x, dtype), rng.random((5, 7)) < 0.7
    got = layer(there, context=backend.array(context, dtype), mask=backend.array(allowed))
    assert_computes(
        backend, got, there, lambda layers: layers.multi_head_vjp(x, exact, context=context, allowed=allowed)[0], dtype, rng
    )


@pytest.mark.parametrize("activation", ["relu", "gelu", "silu"])
@NORM_FIRST
def test_encoder(backend: BackendUnderTest, dtype: str, rng: np.random.Generator, norm_first: bool, activation: str) -> None:
    if backend.quick and norm_first and activation != "gelu":
        pytest.skip("quick runs judge one activation with pre-norm")
    made = mha.Encoder.init(**SMALL, num_layers=2, activation=activation, norm_first=norm_first, seed=2)
    exact, encoder = perturbed(backend, made, dtype, rng)
    x = backend.rounded(rng.normal(size=(6, 16)), dtype)
    there = backend.array(x, dtype)
    for mask, allowed in ((None, None), (mha.causal(), np.tri(6, dtype=bool))):

        def compute(layers: LayerGradients, allowed: np.ndarray | None = allowed) -> np.ndarray:
            return layers.stack_vjp(x, exact, layers.encoder_layer_vjp, allowed=allowed)[0]

        assert_computes(backend, encoder(there, mask=mask), there, compute, dtype, rng)


@NORM_FIRST
def test_decoder_at_once_and_step_by_step(
    backend: BackendUnderTest, dtype: str, rng: np.random.Generator, norm_first: bool
) -> None:
    exact, decoder = perturbed(backend, mha.Decoder.init(**SMALL, num_layers=2, norm_first=norm_first, seed=3), dtype, rng)
    y, memory = (backend.rounded(rng.normal(size=(n, 16)), dtype) for n in (5, 7))
    there, context = backend.array(y, dtype), backend.array(memory, dtype)
    cache = mha.DecoderCache()
    steps = [decoder(there[at : at + 1, :], context, cache=cache) for at in range(5)]
    for got in (decoder(there, context), backend.xp.concat(steps, axis=0)):
        assert_computes(
            backend,
            got,
            there,
            lambda layers: layers.stack_vjp(y, exact, layers.decoder_layer_vjp, memory=memory)[0],
            dtype,
            rng,
        )


def test_layers_are_made_on_the_backend(backend: BackendUnderTest, wide_dtype: str) -> None:
    """The same seed gives the same numbers on every backend."""
    made = mha.EncoderLayer.init(**SMALL, seed=4, backend=backend.name, dtype=wide_dtype, device=backend.device)
    expected = mha.EncoderLayer.init(**SMALL, seed=4, backend="numpy", dtype=wide_dtype).arrays()
    like = backend.array(np.zeros(1), wide_dtype)
    for name, x in made.arrays().items():
        backend.assert_like(x, like)
        np.testing.assert_array_equal(backend.numpy(x), expected[name])


def test_a_layer_travels_to_numpy_and_back(backend: BackendUnderTest, wide_dtype: str) -> None:
    there = mha.EncoderLayer.init(**SMALL, seed=5, backend=backend.name, dtype=wide_dtype, device=backend.device)
    back = there.to("numpy").to(backend.name, device=backend.device)
    for name, x in back.arrays().items():
        backend.assert_like(x, there.arrays()[name])
        np.testing.assert_array_equal(backend.numpy(x), backend.numpy(there.arrays()[name]))
