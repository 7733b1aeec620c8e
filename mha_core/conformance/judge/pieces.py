"""Calls of pieces on the backend under test, compared with NumPy element by element."""

from __future__ import annotations

from ..backend import BackendUnderTest
from ..cases.pieces import PieceCall
from ..oracle.tolerance import assert_within


def judge_piece(backend: BackendUnderTest, op: str, call: PieceCall, dtype: str) -> None:
    """Judge the result of one call, and check that no input was written to."""
    given = [None if x is None else backend.rounded(x, dtype) for x in call.arrays]
    arrays = [None if x is None else backend.array(x, dtype) for x in given]
    named = {f"argument {at} of {op}": x for at, x in enumerate(arrays) if x is not None}
    before = {name: backend.numpy(x).copy() for name, x in named.items()}
    result = call.operation(*arrays, **call.options)
    backend.assert_like(result, arrays[0])
    exact = call.exact(*given, **call.options)
    assert_within(f"{op} {call.name}".strip(), backend.numpy(result), exact, call.bound(exact, tuple(given), dtype))
    backend.assert_unchanged(named, before)
