"""The pieces that layers are made of: linear, norms, activations, rotary, embedding, positions, against NumPy."""

from __future__ import annotations

import numpy as np
import pytest

import mha_core as mha

from .pieces import PIECES, piece_calls
from .subject import Subject, unchanged
from .tolerance import UNIT_ROUNDOFF, assert_within

SECTION = "layers"
pytestmark = pytest.mark.promise(0)


@pytest.mark.parametrize("op", PIECES)
def test_a_piece_equals_numpy(subject: Subject, dtype: str, rng: np.random.Generator, op: str) -> None:
    for call in piece_calls(rng, op):
        given = [None if x is None else subject.rounded(x, dtype) for x in call.arrays]
        arrays = [None if x is None else subject.array(x, dtype) for x in given]
        named = {f"argument {at} of {op}": x for at, x in enumerate(arrays) if x is not None}
        before = {name: subject.numpy(x).copy() for name, x in named.items()}
        result = call.operation(*arrays, **call.options)
        subject.assert_like(result, arrays[0])
        exact = call.exact(*given, **call.options)
        assert_within(f"{op} {call.name}".strip(), subject.numpy(result), exact, call.bound(exact, tuple(given), dtype))
        unchanged(subject, named, before)


def test_embedding_picks_rows_bit_for_bit(subject: Subject, dtype: str, rng: np.random.Generator) -> None:
    table = subject.rounded(rng.normal(size=(7, 3)), dtype)
    for shape in [(5,), (2, 3), (0,), ()]:
        ids = rng.integers(0, 7, size=shape)
        rows = mha.embedding(subject.array(np.asarray(ids)), subject.array(table, dtype))
        np.testing.assert_array_equal(subject.numpy(rows), table[ids])


def test_dropout_keeps_what_is_kept(subject: Subject, dtype: str, rng: np.random.Generator) -> None:
    x, keep = subject.rounded(rng.normal(size=(3, 4)), dtype), rng.random((3, 4)) < 0.5
    got = subject.numpy(mha.dropout(subject.array(x, dtype), subject.array(keep), rate=0.5))
    np.testing.assert_array_equal(got, np.where(keep, 2 * x, 0))


def test_positions_are_made_on_the_backend(subject: Subject, dtype: str) -> None:
    made = mha.sinusoidal_positions(20, 6, backend=subject.name, dtype=dtype, device=subject.device)
    subject.assert_like(made, subject.array(np.zeros(1), dtype))
    angles = np.arange(20)[:, None] / 10000.0 ** (np.arange(0, 6, 2) / 6)
    expected = np.stack([np.sin(angles), np.cos(angles)], axis=-1).reshape(20, 6)
    # in float32 the angle itself, up to 20, is rounded
    tolerance = 64 * UNIT_ROUNDOFF["float64" if dtype == "float64" else "float32"] + UNIT_ROUNDOFF[dtype]
    np.testing.assert_allclose(subject.numpy(made).astype(np.float64), expected, rtol=0, atol=tolerance)
