"""The pieces of layers (linear, norms, activations, rotary, embedding, dropout, positions) and cross-entropy against NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import mha_core as mha
from mha_core.shared import ALGEBRA, kept_elements

from .cases.pieces import PIECES, piece_problems
from .judge.designed import judge_design
from .judge.held import Judge
from .oracle.tolerance import UNIT_ROUNDOFF

SECTION = "layers"
pytestmark = pytest.mark.promise(0)


@pytest.mark.parametrize("op", PIECES)
def test_a_piece_equals_numpy(judge: Judge, op: str) -> None:
    for problem in piece_problems(op, judge.rng):
        judge.judge_once(problem)


@pytest.mark.promise(0, 12, 14)
def test_cross_entropy_on_problems_of_a_covering_design(judge: Judge) -> None:
    judge_design(judge, "cross_entropy", ALGEBRA, ()).assert_computed()


def test_embedding_picks_rows_bit_for_bit(judge: Judge) -> None:
    table = judge.normal((7, 3))
    for shape in [(5,), (2, 3), (0,), ()]:
        ids = judge.rng.integers(0, 7, size=shape)
        rows = mha.embedding(judge.array(np.asarray(ids)), judge.array(table))
        np.testing.assert_array_equal(judge.numpy(rows), table[ids])


def test_dropout_keeps_what_is_kept(judge: Judge) -> None:
    x, keep = judge.normal((3, 4)), judge.rng.random((3, 4)) < 0.5
    got = judge.numpy(mha.dropout(judge.array(x), judge.array(keep), rate=0.5))
    np.testing.assert_array_equal(got, np.where(keep, 2 * x, 0))


def test_a_seed_drops_what_it_drops_on_numpy(wide: Judge) -> None:
    ones: Any = np.ones((4, 5, 33))
    x = wide.array(ones)
    np.testing.assert_array_equal(wide.numpy(kept_elements(wide.xp, x, 0.3, 12345)), kept_elements(np, ones, 0.3, 12345))
    queries: Any = np.zeros((2, 3, 7, 4))
    drop = mha.weight_dropout(0.4, seed=7)
    here, there = (mha.attention_weights(q, q, weight_dropout=drop) for q in (queries, wide.array(queries)))
    np.testing.assert_array_equal(wide.numpy(there) == 0, here == 0)


def test_positions_are_made_on_the_backend(judge: Judge) -> None:
    made = mha.sinusoidal_positions(20, 6, backend=judge.name, dtype=judge.dtype, device=judge.device)
    judge.assert_like(made, judge.array(np.zeros(1)))
    angles = np.arange(20)[:, None] / 10000.0 ** (np.arange(0, 6, 2) / 6)
    expected = np.stack([np.sin(angles), np.cos(angles)], axis=-1).reshape(20, 6)
    # in float32 the angle, up to 20, is rounded too
    tolerance = 64 * UNIT_ROUNDOFF["float64" if judge.dtype == "float64" else "float32"] + UNIT_ROUNDOFF[judge.dtype]
    np.testing.assert_allclose(judge.numpy(made).astype(np.float64), expected, rtol=0, atol=tolerance)
