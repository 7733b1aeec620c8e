"""The weights of attention as an operation, planned in each call."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Unpack

from ..algebra import attention as algebra
from ..algebra.arrays import Array, Index, at_least, broadcast_shapes
from ..algebra.problem import AttentionProblem, check_lengths
from ..dispatch.backend import LoadedBackend
from ..dispatch.kernels import decide, describe
from ..dispatch.selection import check_floating, check_same_device
from . import check
from .attend import arrays_inside, prepare
from .operation import Operation, PendingCall, Plan
from .options import Options


def _prepare(
    query: Array, key: Array, lse: Array | None, rows: slice | Index, cols: slice | Index, **options: Unpack[Options]
) -> tuple[LoadedBackend, AttentionProblem, Array | None, Index, Index]:
    """Return a valid problem without values, and lse, rows and cols in the form that the algebra needs."""
    if "value" in options:
        raise TypeError("attention_weights takes no value: weights depend on queries and keys only")
    backend = check_floating(query=query, key=key)
    check.ndim("key", key, 2, "(..., heads, length, head_dim)")
    _, problem = prepare(query, key, key[..., :0], **options)  # with values of width 0
    check_lengths(problem, "attention_weights")
    chosen = check.index("rows", rows, query.shape[-2]), check.index("cols", cols, key.shape[-2])
    if lse is not None:
        check_same_device(query, [("lse", lse)])
        rows_shape = problem.rows_shape[1:] if query.ndim == key.ndim == 2 else problem.rows_shape
        tail = rows_shape[-2:]
        if tuple(lse.shape[-len(tail) :]) != tail or not _broadcast(lse.shape, rows_shape):
            check.shape("lse", lse, rows_shape, "(..., H, L)")  # lse may have more batch axes, since the values may have more
        if not backend.is_floating(lse.dtype):
            raise TypeError(f"lse has dtype {lse.dtype}; expected the lse of attention_state")
        lse = at_least(backend.xp, lse, len(problem.rows_shape))
    return backend, problem, lse, *chosen


def _broadcast(*shapes: tuple[int, ...]) -> bool:
    try:
        broadcast_shapes(*shapes)
    except ValueError:
        return False
    return True


def _plan(arguments: tuple[Any, ...], options: Mapping[str, Any], kept: bool) -> Plan:
    """Return the plan: a kernel receives the problem, lse, rows, cols, and the number of all keys."""
    query, key, lse, rows, cols = arguments
    backend, p, lse, rows, cols = _prepare(query, key, lse, rows, cols, **options)
    arrays = {"query": p.query, "key": p.key, "lse": lse}
    features, shield = backend.shielded(backend.features((*arrays.values(), p.sink, *arrays_inside(p))))
    sizes = {"num_rows": len(rows), "num_cols": len(cols)}
    call = describe("attention_weights", arrays, features=features | (p.features - {"value_dim"}), options=sizes)
    decision = decide(backend.name, call)
    by_algebra = shield(algebra.attention_weights)
    kernel = by_algebra if decision.run is None else shield(decision.run)
    has_heads = not query.ndim == key.ndim == 2

    def compute(function: Callable[..., Array]) -> Array:
        weights = function(p, lse, rows, cols, key.shape[-2])
        return weights if has_heads else weights[0, ...]

    def bind(*_: Any) -> PendingCall:
        shape = (*p.rows_shape[:-1], len(rows), len(cols))
        return PendingCall(
            backend=backend,
            call=call,
            decision=decision,
            arguments=arrays,
            options={"mask": p.mask, "bias": p.bias},
            compute=partial(compute, kernel),
            algebra=partial(compute, by_algebra),
            empty=partial(backend.placeholder, shape if has_heads else shape[1:], p.query.dtype, p.device),
        )

    return Plan(lambda *_: compute(kernel), bind)


weights_operation = Operation(lambda arguments, options: None, _plan, plans_hold_options=True)
"""attention_weights(query, key, lse, rows, cols, **options)."""
