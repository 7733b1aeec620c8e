"""Linear maps of few rows, as in decoding: which calls the compiled module computes, and how it is called."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from mha_core.plugin import Call

from .level import native

_ROWS = 8
"""The most rows; with more, the products of a BLAS take less time."""
_WEIGHT = 1 << 17
"""The fewest numbers of a weight, which take longer to read than a call to begin."""


def supports(call: Call) -> str | None:
    """Return why the kernel does not compute a call, or None."""
    if call.dtype_name not in ("float32", "bfloat16"):
        return f"computes in float32 and bfloat16, not in {call.dtype}"
    x, w = call.shape("x"), call.shape("w")
    assert x is not None and w is not None
    rows = math.prod(x[:-1])
    if not 1 <= rows <= _ROWS:
        return f"computes 1 to {_ROWS} rows, not {rows}"
    return None if math.prod(w) >= _WEIGHT else f"is for weights of {_WEIGHT} numbers or more, not {math.prod(w)}"


def write(
    x: Any,
    w: Any,
    b: Any,
    y: Any,
    *,
    kind: str,
    threads: int,
    team: int,
    at: Callable[[Any], tuple[int, tuple[int, ...]]],
    dense: Callable[[Any], Any],
) -> None:
    """Write x w + b to y, (rows, inputs), (inputs, outputs), (outputs,) or None, (rows, outputs).

    ``at`` returns an array's address and steps in bytes, ``dense`` an array without gaps, which is copied if need be.
    """
    size = 2 if kind == "H" else 4
    (from_, (x_step, between)), (weights, steps), (to, (y_step, _)) = at(x), at(w), at(y)
    if between != size:
        x = dense(x)
        from_, (x_step, _) = at(x)
    if size not in steps:
        w = dense(w)
        weights, steps = at(w)
    by_output = steps[0] == size
    b = None if b is None else dense(b)
    shape, bias = (y.shape[0], *w.shape), 0 if b is None else at(b)[0]
    native.linear_few_rows(kind, threads, team, shape, from_, x_step, weights, steps[by_output], by_output, bias, to, y_step)
