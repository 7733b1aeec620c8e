"""Layers in float16 and bfloat16, within bounds that carry rounding errors from step to step.

test_pieces judges the pieces.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import mha_core as mha

from .backend import BackendUnderTest
from .cases.layers import SMALL, perturbed
from .oracle import tolerance
from .oracle.error_propagation import Approximate, RoundedLayers

pytestmark = pytest.mark.promise(9)
HALF = ("float16", "bfloat16")


@pytest.fixture(params=HALF)
def half(request: pytest.FixtureRequest, backend: BackendUnderTest) -> str:
    dtype: str = request.param
    if backend.quick and dtype != next((one for one in HALF if one in backend.dtypes), dtype):
        pytest.skip("quick runs judge layers in one half precision")
    if dtype not in backend.dtypes:
        pytest.skip(f"the backend lacks {dtype}, or it is not judged")
    return dtype


def judge(backend: BackendUnderTest, name: str, got: Any, given: Any, expected: Approximate) -> None:
    backend.assert_like(got, given)
    tolerance.assert_within(name, backend.numpy(got), expected.exact, expected.bound)


@pytest.mark.parametrize("kv_heads", [4, 2])
def test_multi_head_attention(backend: BackendUnderTest, half: str, rng: np.random.Generator, kv_heads: int) -> None:
    made = mha.MultiHeadAttention.init(d_model=16, num_heads=4, num_kv_heads=kv_heads, d_context=12, seed=1)
    exact, layer = perturbed(backend, made, half, rng)
    x, context = (backend.rounded(rng.normal(size=shape), half) for shape in [(5, 16), (7, 12)])
    allowed = rng.random((5, 7)) < 0.7
    there, rounding = backend.array(x, half), RoundedLayers(half, backend.rounds_weights)
    got = layer(there, context=backend.array(context, half), mask=backend.array(allowed))
    expected = rounding.multi_head(rounding.given(x), exact, context=rounding.given(context), allowed=allowed)
    judge(backend, "multi_head_attention", got, there, expected)


@pytest.mark.parametrize("activation", ["relu", "gelu", "silu"])
@pytest.mark.parametrize("norm_first", [False, True], ids=["post-norm", "pre-norm"])
def test_encoder_layer(
    backend: BackendUnderTest, half: str, rng: np.random.Generator, norm_first: bool, activation: str
) -> None:
    if backend.quick and activation != "gelu":
        pytest.skip("quick runs judge one activation here")
    made = mha.EncoderLayer.init(**SMALL, activation=activation, norm_first=norm_first, seed=2)
    exact, layer = perturbed(backend, made, half, rng)
    x = backend.rounded(rng.normal(size=(6, 16)), half)
    there, rounding = backend.array(x, half), RoundedLayers(half, backend.rounds_weights)
    for mask, allowed in ((None, None), (mha.causal(), np.tri(6, dtype=bool))):
        expected = rounding.encoder_layer(rounding.given(x), exact, allowed=allowed)
        judge(backend, "encoder_layer", layer(there, mask=mask), there, expected)


@pytest.mark.parametrize("norm_first", [False, True], ids=["post-norm", "pre-norm"])
def test_decoder_layer(backend: BackendUnderTest, half: str, rng: np.random.Generator, norm_first: bool) -> None:
    exact, layer = perturbed(backend, mha.DecoderLayer.init(**SMALL, norm_first=norm_first, seed=3), half, rng)
    y, memory = (backend.rounded(rng.normal(size=(n, 16)), half) for n in (5, 7))
    there, rounding = backend.array(y, half), RoundedLayers(half, backend.rounds_weights)
    got = layer(there, backend.array(memory, half))
    judge(backend, "decoder_layer", got, there, rounding.decoder_layer(rounding.given(y), rounding.given(memory), exact))


def test_many_keys_are_summed_in_float32(backend: BackendUnderTest, half: str) -> None:
    """4096 equal keys: a sum of ones stops at 2048 in float16, at 256 in bfloat16."""
    x, value = np.zeros((1, 4096, 8)), np.ones((1, 4096, 8))
    state = mha.attention_state(backend.array(x[:, :2], half), backend.array(x, half), backend.array(value, half))
    assert (backend.numpy(state.out) == 1).all()
    np.testing.assert_allclose(backend.numpy(state.lse), np.log(4096), rtol=1e-6)


def test_norms_of_great_numbers_do_not_overflow(backend: BackendUnderTest, half: str) -> None:
    """Their squares overflow float16: norms are computed in float32."""
    x = np.asarray([[20000.0, -20000.0, 20000.0, -20000.0]])
    for norm in (mha.layer_norm, mha.rms_norm):
        got = backend.numpy(norm(backend.array(x, half)))
        np.testing.assert_allclose(got, np.sign(x), rtol=4 * tolerance.UNIT_ROUNDOFF[half])
