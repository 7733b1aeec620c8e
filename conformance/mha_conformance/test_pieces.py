"""The pieces of layers (linear, norms, activations, rotary, embedding, dropout, positions) against NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import mha_core as mha
from mha_core.shared import kept_elements

from .backend import BackendUnderTest
from .cases.pieces import PIECES, piece_problems
from .judge.held import Judge
from .oracle.tolerance import UNIT_ROUNDOFF

SECTION = "layers"
pytestmark = pytest.mark.promise(0)


@pytest.mark.parametrize("op", PIECES)
def test_a_piece_equals_numpy(backend: BackendUnderTest, dtype: str, rng: np.random.Generator, op: str) -> None:
    for problem in piece_problems(op, rng):
        Judge(backend, dtype).judge_once(problem)


def test_embedding_picks_rows_bit_for_bit(backend: BackendUnderTest, dtype: str, rng: np.random.Generator) -> None:
    table = backend.rounded(rng.normal(size=(7, 3)), dtype)
    for shape in [(5,), (2, 3), (0,), ()]:
        ids = rng.integers(0, 7, size=shape)
        rows = mha.embedding(backend.array(np.asarray(ids)), backend.array(table, dtype))
        np.testing.assert_array_equal(backend.numpy(rows), table[ids])


def test_dropout_keeps_what_is_kept(backend: BackendUnderTest, dtype: str, rng: np.random.Generator) -> None:
    x, keep = backend.rounded(rng.normal(size=(3, 4)), dtype), rng.random((3, 4)) < 0.5
    got = backend.numpy(mha.dropout(backend.array(x, dtype), backend.array(keep), rate=0.5))
    np.testing.assert_array_equal(got, np.where(keep, 2 * x, 0))


def test_a_seed_drops_what_it_drops_on_numpy(backend: BackendUnderTest, wide_dtype: str) -> None:
    ones: Any = np.ones((4, 5, 33))
    x = backend.array(ones, wide_dtype)
    np.testing.assert_array_equal(backend.numpy(kept_elements(backend.xp, x, 0.3, 12345)), kept_elements(np, ones, 0.3, 12345))
    queries: Any = np.zeros((2, 3, 7, 4))
    drop = mha.weight_dropout(0.4, seed=7)
    here, there = (mha.attention_weights(q, q, weight_dropout=drop) for q in (queries, backend.array(queries, wide_dtype)))
    np.testing.assert_array_equal(backend.numpy(there) == 0, here == 0)


def test_positions_are_made_on_the_backend(backend: BackendUnderTest, dtype: str) -> None:
    made = mha.sinusoidal_positions(20, 6, backend=backend.name, dtype=dtype, device=backend.device)
    backend.assert_like(made, backend.array(np.zeros(1), dtype))
    angles = np.arange(20)[:, None] / 10000.0 ** (np.arange(0, 6, 2) / 6)
    expected = np.stack([np.sin(angles), np.cos(angles)], axis=-1).reshape(20, 6)
    # in float32 the angle, up to 20, is rounded too
    tolerance = 64 * UNIT_ROUNDOFF["float64" if dtype == "float64" else "float32"] + UNIT_ROUNDOFF[dtype]
    np.testing.assert_allclose(backend.numpy(made).astype(np.float64), expected, rtol=0, atol=tolerance)
