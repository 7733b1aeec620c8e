"""NaN and infinity in what some queries see reach those and no others."""

import contextlib
from types import SimpleNamespace

import numpy as np
import pytest

import mha_core as mha
from mha_core.dispatch.backend import LoadedBackend
from mha_core.ops import attend

BAD = pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])


def arrays(rng, length):
    return {name: rng.normal(size=(2, 3, length, 8)).astype(np.float32) for name in ("query", "key", "value")}


@BAD
@pytest.mark.parametrize("kernel", ["chosen", "algebra"])
@pytest.mark.parametrize("where", ["key", "value"])
def test_only_the_queries_that_see_it_are_reached(rng, bad, kernel, where):
    """Also without a head axis, for lse, and where the key has a weight: a key of -inf may have none."""
    given, at = arrays(rng, 40), 25
    with contextlib.nullcontext() if kernel == "chosen" else mha.use_kernel("attention", kernel):
        clean = mha.attention_state(**given, mask=mha.causal())
        given[where][:, :, at, :4] = bad
        out, lse = mha.attention_state(**given, mask=mha.causal())
        flat = mha.scaled_dot_product_attention(**{name: x[0, 0] for name, x in given.items()}, mask=mha.causal())
    np.testing.assert_allclose(out[..., :at, :], clean.out[..., :at, :], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(lse[..., :at], clean.lse[..., :at], rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(flat, out[0, 0])
    if where == "value":
        np.testing.assert_array_equal(out[..., at:, :4], np.full_like(out[..., at:, :4], bad))
        np.testing.assert_allclose(out[..., 4:], clean.out[..., 4:], rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(lse, clean.lse, rtol=1e-5, atol=1e-6)


def test_a_kernel_that_is_demanded_by_name_computes_alone(rng, monkeypatch):
    monkeypatch.setattr(attend, "independent_rows", None)
    given = arrays(rng, 9)
    given["value"][..., 5, :] = np.nan
    with mha.use_kernel("attention", "tiles"):
        assert np.isnan(mha.scaled_dot_product_attention(**given, mask=mha.causal())[..., 5:, :]).all()


def test_both_infinities_make_nan_for_a_query_that_sees_both(rng):
    given = arrays(rng, 6)
    given["value"][..., 1, 0], given["value"][..., 3, 0] = np.inf, -np.inf
    out = mha.scaled_dot_product_attention(**given, mask=mha.causal())[..., 0]
    assert np.isfinite(out[..., :1]).all() and np.isposinf(out[..., 1:3]).all() and np.isnan(out[..., 3:]).all()


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_results_whose_sum_overflows_are_computed_once_and_without_a_warning(rng, monkeypatch, dtype):
    """Warnings are errors here."""
    monkeypatch.setattr(attend, "independent_rows", lambda p, attend: pytest.fail("it is computed again"))
    given = {name: x.astype(dtype) for name, x in arrays(rng, 9).items()}
    given["value"][...] = np.finfo(dtype).max / 100
    out = mha.scaled_dot_product_attention(**given, mask=mha.causal())
    np.testing.assert_allclose(out.astype(float), given["value"].astype(float), rtol=0.01)


@pytest.mark.parametrize(("mask", "looks"), [(None, 0), (mha.causal(), 1), (mha.prefix(3), 0)])
def test_nan_is_looked_for_only_where_some_queries_see_less(rng, monkeypatch, mask, looks):
    seen = []
    monkeypatch.setattr(LoadedBackend, "has_nan", lambda self, x: seen.append(x) or False)
    mha.scaled_dot_product_attention(**arrays(rng, 7), mask=mask)
    assert len(seen) == looks


@pytest.mark.parametrize("xp", [np, SimpleNamespace(sum=np.sum, max=np.nanmax)], ids=["warns", "does_not"])
def test_one_nan_in_a_long_array_is_found(xp):
    """XLA's maximum keeps NaN in short arrays and leaves it out of those of some thousand elements."""
    backend = LoadedBackend(None, xp)
    numbers = np.ones((4, 5000))
    assert not backend.has_nan(numbers)
    numbers[1, 4567] = np.nan
    assert backend.has_nan(numbers)


@pytest.mark.parametrize("shape", [(2, 0, 8), (0, 3, 8), (2, 3, 0)])
def test_attention_without_elements_is_not_looked_at(shape):
    key = np.ones((*shape[:1], 3, 8), np.float32)
    out = mha.scaled_dot_product_attention(key[:, : shape[1]], key, key[..., : shape[2]], mask=mha.causal(), query_offset=0)
    assert out.shape == shape
