"""Layers in float16 and bfloat16, with bounds that are carried from step to step (near.py); the pieces are in test_pieces."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import mha_core as mha

from . import tolerance
from .layers import SMALL, on
from .near import Layers, Near
from .subject import Subject

pytestmark = pytest.mark.promise(9)
HALF = ("float16", "bfloat16")


@pytest.fixture(params=HALF)
def half(request: pytest.FixtureRequest, subject: Subject) -> str:
    dtype: str = request.param
    if subject.quick and dtype != next((one for one in HALF if one in subject.dtypes), dtype):
        pytest.skip("quick runs judge layers in one half precision")
    if dtype not in subject.dtypes:
        pytest.skip(f"the backend has no {dtype}, or it is not judged")
    return dtype


def judge(subject: Subject, name: str, got: Any, given: Any, expected: Near) -> None:
    subject.assert_like(got, given)
    tolerance.assert_within(name, subject.numpy(got), expected.exact, expected.bound)


@pytest.mark.parametrize("kv_heads", [4, 2])
def test_multi_head_attention(subject: Subject, half: str, rng: np.random.Generator, kv_heads: int) -> None:
    made = mha.MultiHeadAttention.init(d_model=16, num_heads=4, num_kv_heads=kv_heads, d_context=12, seed=1)
    exact, layer = on(subject, made, half, rng)
    x, context = (subject.rounded(rng.normal(size=shape), half) for shape in [(5, 16), (7, 12)])
    allowed = rng.random((5, 7)) < 0.7
    there, near = subject.array(x, half), Layers(half, subject.rounds_weights)
    got = layer(there, context=subject.array(context, half), mask=subject.array(allowed))
    expected = near.multi_head(near.given(x), exact, context=near.given(context), allowed=allowed)
    judge(subject, "multi_head_attention", got, there, expected)


@pytest.mark.parametrize("activation", ["relu", "gelu", "silu"])
@pytest.mark.parametrize("norm_first", [False, True], ids=["post-norm", "pre-norm"])
def test_encoder_layer(subject: Subject, half: str, rng: np.random.Generator, norm_first: bool, activation: str) -> None:
    if subject.quick and activation != "gelu":
        pytest.skip("quick runs judge one activation here")
    made = mha.EncoderLayer.init(**SMALL, activation=activation, norm_first=norm_first, seed=2)
    exact, layer = on(subject, made, half, rng)
    x = subject.rounded(rng.normal(size=(6, 16)), half)
    there, near = subject.array(x, half), Layers(half, subject.rounds_weights)
    for mask, allowed in ((None, None), (mha.causal(), np.tri(6, dtype=bool))):
        expected = near.encoder_layer(near.given(x), exact, allowed=allowed)
        judge(subject, "encoder_layer", layer(there, mask=mask), there, expected)


@pytest.mark.parametrize("norm_first", [False, True], ids=["post-norm", "pre-norm"])
def test_decoder_layer(subject: Subject, half: str, rng: np.random.Generator, norm_first: bool) -> None:
    exact, layer = on(subject, mha.DecoderLayer.init(**SMALL, norm_first=norm_first, seed=3), half, rng)
    y, memory = (subject.rounded(rng.normal(size=(n, 16)), half) for n in (5, 7))
    there, near = subject.array(y, half), Layers(half, subject.rounds_weights)
    got = layer(there, subject.array(memory, half))
    judge(subject, "decoder_layer", got, there, near.decoder_layer(near.given(y), near.given(memory), exact))


def test_many_keys_are_summed_in_float32(subject: Subject, half: str) -> None:
    """4096 equal keys: a sum of ones in half precision stops at 2048, or at 256."""
    x, value = np.zeros((1, 4096, 8)), np.ones((1, 4096, 8))
    state = mha.attention_state(subject.array(x[:, :2], half), subject.array(x, half), subject.array(value, half))
    assert (subject.numpy(state.out) == 1).all()
    np.testing.assert_allclose(subject.numpy(state.lse), np.log(4096), rtol=1e-6)


def test_norms_of_great_numbers_do_not_overflow(subject: Subject, half: str) -> None:
    """Their squares are beyond float16: norms are computed in float32."""
    x = np.asarray([[20000.0, -20000.0, 20000.0, -20000.0]])
    for norm in (mha.layer_norm, mha.rms_norm):
        got = subject.numpy(norm(subject.array(x, half)))
        np.testing.assert_allclose(got, np.sign(x), rtol=4 * tolerance.UNIT_ROUNDOFF[half])
