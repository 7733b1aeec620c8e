"""Calls of pieces on the backend under test, compared with NumPy element by element."""

from __future__ import annotations

from ..backend import BackendUnderTest
from ..cases.pieces import PieceCall
from ..oracle.tolerance import assert_within
from .layouts import laid_out


def judge_piece(
    backend: BackendUnderTest, op: str, call: PieceCall, dtype: str, *, layouts: tuple[str, ...] = ("contiguous",) * 3
) -> None:
    """Judge the result of one call, and check that no input was written to."""
    given = [None if x is None else backend.rounded(x, dtype) for x in call.arrays]
    arrays = [
        None if x is None else laid_out(backend, backend.array(x, dtype), layout)
        for x, layout in zip(given, layouts, strict=False)
    ]
    named = {f"argument {at} of {op}": x for at, x in enumerate(arrays) if x is not None}
    before = {name: backend.numpy(x).copy() for name, x in named.items()}
    result = call.operation(*arrays, **call.options)
    backend.assert_like(result, arrays[0])
    exact = call.exact(*given, **call.options)
    assert_within(f"{op} {call.name}".strip(), backend.numpy(result), exact, call.bound(exact, tuple(given), dtype))
    backend.assert_unchanged(named, before)
