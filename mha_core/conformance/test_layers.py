"""Layers against the same formulas in NumPy float64, and conversion of layers between libraries.

Layers are judged here in float32 and float64, and in half precision by test_half_precision.
"""

from __future__ import annotations

import numpy as np
import pytest

import mha_core as mha

from .backend import BackendUnderTest
from .cases.layers import SMALL, assert_close, perturbed
from .oracle import reference

pytestmark = pytest.mark.promise(0)


@pytest.mark.parametrize("kv_heads", [4, 2, 1])
def test_multi_head_attention(backend: BackendUnderTest, wide_dtype: str, rng: np.random.Generator, kv_heads: int) -> None:
    made = mha.MultiHeadAttention.init(d_model=16, num_heads=4, num_kv_heads=kv_heads, d_context=12, seed=1)
    exact, layer = perturbed(backend, made, wide_dtype, rng)
    x, context = (backend.rounded(rng.normal(size=shape), wide_dtype) for shape in [(5, 16), (7, 12)])
    there = backend.array(x, wide_dtype)
    allowed = rng.random((5, 7)) < 0.7
    got = layer(there, context=backend.array(context, wide_dtype), mask=backend.array(allowed))
    assert_close(backend, got, there, reference.multi_head(x, exact, context=context, allowed=allowed), wide_dtype)


@pytest.mark.parametrize("activation", ["relu", "gelu", "silu"])
@pytest.mark.parametrize("norm_first", [False, True], ids=["post-norm", "pre-norm"])
def test_encoder(
    backend: BackendUnderTest, wide_dtype: str, rng: np.random.Generator, norm_first: bool, activation: str
) -> None:
    if backend.quick and norm_first and activation != "gelu":
        pytest.skip("quick runs judge one activation with pre-norm")
    made = mha.Encoder.init(**SMALL, num_layers=2, activation=activation, norm_first=norm_first, seed=2)
    exact, encoder = perturbed(backend, made, wide_dtype, rng)
    x = backend.rounded(rng.normal(size=(6, 16)), wide_dtype)
    there = backend.array(x, wide_dtype)
    for mask, allowed in ((None, None), (mha.causal(), np.tri(6, dtype=bool))):
        expected = reference.stack(
            x, exact, lambda y, layer, allowed=allowed: reference.encoder_layer(y, layer, allowed=allowed)
        )
        assert_close(backend, encoder(there, mask=mask), there, expected, wide_dtype)


@pytest.mark.parametrize("norm_first", [False, True], ids=["post-norm", "pre-norm"])
def test_decoder_at_once_and_step_by_step(
    backend: BackendUnderTest, wide_dtype: str, rng: np.random.Generator, norm_first: bool
) -> None:
    exact, decoder = perturbed(backend, mha.Decoder.init(**SMALL, num_layers=2, norm_first=norm_first, seed=3), wide_dtype, rng)
    y, memory = (backend.rounded(rng.normal(size=(n, 16)), wide_dtype) for n in (5, 7))
    expected = reference.stack(y, exact, reference.decoder_layer, memory)
    there, context = backend.array(y, wide_dtype), backend.array(memory, wide_dtype)
    assert_close(backend, decoder(there, context), there, expected, wide_dtype)
    cache = mha.DecoderCache()
    for at in range(5):
        step = decoder(there[at : at + 1, :], context, cache=cache)
        assert_close(backend, step, there, expected[at : at + 1], wide_dtype)


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
