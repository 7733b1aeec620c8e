"""Sums and norms in float16 and bfloat16 that only a wider dtype gets right (promise 9)."""

from __future__ import annotations

import numpy as np
import pytest

import mha_core as mha

from .backend import BackendUnderTest
from .oracle import tolerance

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
