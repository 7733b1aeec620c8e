"""Layers against the same formulas in NumPy float64, and their way from one library to another.

In float32 and float64 only: layers of half precision round at every step, and no bound of theirs would catch much.
"""

from __future__ import annotations

import numpy as np
import pytest

import mha_core as mha

from . import reference
from .layers import SMALL, assert_close, on
from .subject import Subject

pytestmark = pytest.mark.promise(0)


@pytest.mark.parametrize("kv_heads", [4, 2, 1])
def test_multi_head_attention(subject: Subject, wide_dtype: str, rng: np.random.Generator, kv_heads: int) -> None:
    made = mha.MultiHeadAttention.init(d_model=16, num_heads=4, num_kv_heads=kv_heads, d_context=12, seed=1)
    exact, layer = on(subject, made, wide_dtype, rng)
    x, context = (subject.rounded(rng.normal(size=shape), wide_dtype) for shape in [(5, 16), (7, 12)])
    there = subject.array(x, wide_dtype)
    allowed = rng.random((5, 7)) < 0.7
    got = layer(there, context=subject.array(context, wide_dtype), mask=subject.array(allowed))
    assert_close(subject, got, there, reference.multi_head(x, exact, context=context, allowed=allowed), wide_dtype)


@pytest.mark.parametrize("activation", ["relu", "gelu", "silu"])
@pytest.mark.parametrize("norm_first", [False, True], ids=["post-norm", "pre-norm"])
def test_encoder(subject: Subject, wide_dtype: str, rng: np.random.Generator, norm_first: bool, activation: str) -> None:
    if subject.quick and norm_first and activation != "gelu":
        pytest.skip("quick runs judge one activation with pre-norm")
    made = mha.Encoder.init(**SMALL, num_layers=2, activation=activation, norm_first=norm_first, seed=2)
    exact, encoder = on(subject, made, wide_dtype, rng)
    x = subject.rounded(rng.normal(size=(6, 16)), wide_dtype)
    there = subject.array(x, wide_dtype)
    for mask, allowed in ((None, None), (mha.causal(), np.tri(6, dtype=bool))):
        expected = reference.stack(
            x, exact, lambda y, layer, allowed=allowed: reference.encoder_layer(y, layer, allowed=allowed)
        )
        assert_close(subject, encoder(there, mask=mask), there, expected, wide_dtype)


@pytest.mark.parametrize("norm_first", [False, True], ids=["post-norm", "pre-norm"])
def test_decoder_at_once_and_step_by_step(
    subject: Subject, wide_dtype: str, rng: np.random.Generator, norm_first: bool
) -> None:
    exact, decoder = on(subject, mha.Decoder.init(**SMALL, num_layers=2, norm_first=norm_first, seed=3), wide_dtype, rng)
    y, memory = (subject.rounded(rng.normal(size=(n, 16)), wide_dtype) for n in (5, 7))
    expected = reference.stack(y, exact, reference.decoder_layer, memory)
    there, context = subject.array(y, wide_dtype), subject.array(memory, wide_dtype)
    assert_close(subject, decoder(there, context), there, expected, wide_dtype)
    cache = mha.DecoderCache()
    for at in range(5):
        step = decoder(there[at : at + 1, :], context, cache=cache)
        assert_close(subject, step, there, expected[at : at + 1], wide_dtype)


def test_layers_are_made_on_the_backend(subject: Subject, wide_dtype: str) -> None:
    """The same numbers on every backend, from the same seed."""
    made = mha.EncoderLayer.init(**SMALL, seed=4, backend=subject.name, dtype=wide_dtype, device=subject.device)
    expected = mha.EncoderLayer.init(**SMALL, seed=4, backend="numpy", dtype=wide_dtype).arrays()
    like = subject.array(np.zeros(1), wide_dtype)
    for name, x in made.arrays().items():
        subject.assert_like(x, like)
        np.testing.assert_array_equal(subject.numpy(x), expected[name])


def test_a_layer_travels_to_numpy_and_back(subject: Subject, wide_dtype: str) -> None:
    there = mha.EncoderLayer.init(**SMALL, seed=5, backend=subject.name, dtype=wide_dtype, device=subject.device)
    back = there.to("numpy").to(subject.name, device=subject.device)
    for name, x in back.arrays().items():
        subject.assert_like(x, there.arrays()[name])
        np.testing.assert_array_equal(subject.numpy(x), subject.numpy(there.arrays()[name]))
