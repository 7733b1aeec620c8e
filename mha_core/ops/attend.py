"""Attention and its weights as operations: their keys, their plans, and the choice of a kernel for an ``AttentionProblem``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from ..algebra import attention as algebra
from ..algebra.arrays import Array
from ..algebra.problem import AttentionProblem
from ..algebra.state import AttentionState
from ..algebra.visibility import template
from ..dispatch.backend import LoadedBackend
from ..dispatch.kernels import decide, describe
from ..dispatch.problems import attention_call
from .attend_vjp import is_recorded, recorded_attention
from .operation import Key, Operation, Plan, Run, key_of
from .prepare import prepare, prepare_weights


def attention_operation(*, lse: bool) -> Operation:
    """Return attention(query, key, value, sink, **options); without ``lse``, a kernel may return a state whose lse is None."""
    return Operation(partial(key_of, ("attention", lse)), partial(_plan, lse))


def _plan(lse: bool, arrays: tuple[Any, ...], options: Mapping[str, Any], kept: bool) -> Plan:
    if is_recorded(arrays, options):
        return Plan(partial(recorded_attention, state_operation, lse), None)
    *arrays_with_head_axis, sink = arrays
    backend, p = prepare(*arrays_with_head_axis, sink=sink, **options)
    asked, shield = backend.shielded(backend.features((p.query, p.key, p.value, p.sink, *_inside(p))))
    p = replace(p, asked=asked | {"lse"} if lse else asked)
    call = attention_call(p)
    decision = decide(backend.name, call)
    fill: Callable[..., AttentionProblem]
    fill, unchanged = template(p, *arrays_with_head_axis) if kept else (lambda *_: p, False)
    prepared = decision.prepared(p) if kept and decision.prepared is not None else None
    prepared = None if prepared is None else shield(prepared)
    by_algebra = shield(algebra.attention_state)
    run = by_algebra if decision.run is None else shield(decision.run)
    if prepared is not None:
        run = partial(_run_prepared, prepared)
    finish = _without_head_axis if all(x.ndim == 2 for x in arrays_with_head_axis) else None

    def compute(query: Array, key: Array, value: Array, sink: Array | None) -> AttentionState:
        state: AttentionState = run(fill(query, key, value, sink))
        return state if finish is None else finish(state)

    def bind(query: Array, key: Array, value: Array, sink: Array | None, **options: Any) -> Run:
        p = fill(query, key, value, sink)
        return Run(
            backend=backend,
            call=call,
            decision=decision,
            arguments={"query": p.query, "key": p.key, "value": p.value, "sink": p.sink},
            options={**options, "scale": p.scale, "query_offset": p.offset, "problem": p},
            compute=partial(run, p),
            algebra=partial(by_algebra, p),
            empty=partial(_empty_state, backend, p),
        )

    return Plan(prepared if prepared is not None and unchanged else compute, bind, has_options=True, finish=finish)


def _inside(p: AttentionProblem) -> Iterator[Array]:
    """Yield the arrays inside the mask and the bias, which may require a gradient too."""
    return (x for term in (p.mask, p.bias) if term is not None for _, x in term.arrays())


def _run_prepared(prepared: Callable[..., AttentionState], p: AttentionProblem) -> AttentionState:
    return prepared(p.query, p.key, p.value, p.sink)


def _without_head_axis(state: AttentionState) -> AttentionState:
    return AttentionState(state.out[0, ...], state.lse if state.lse is None else state.lse[0, ...])


def _empty_state(backend: LoadedBackend, p: AttentionProblem) -> AttentionState:
    out = backend.placeholder((*p.rows_shape, p.value.shape[-1]), p.query.dtype, p.device)
    return AttentionState(out, backend.placeholder(p.rows_shape, p.compute_dtype, p.device))


def _plan_weights(arguments: tuple[Any, ...], options: Mapping[str, Any], kept: bool) -> Plan:
    """Return the plan of ``attention_weights``: a kernel receives the problem, lse, rows, cols, and the number of all keys."""
    query, key, lse, rows, cols = arguments
    backend, p, lse, rows, cols = prepare_weights(query, key, lse, rows, cols, **options)
    received = (p, lse, rows, cols, key.shape[-2])
    given = {"query": p.query, "key": p.key, "lse": lse}
    asked, shield = backend.shielded(backend.features((*given.values(), p.sink, *_inside(p))))
    sizes = {"num_rows": len(rows), "num_cols": len(cols)}
    call = describe("attention_weights", given, features=asked | (p.features - {"value_dim"}), options=sizes)
    decision = decide(backend.name, call)
    by_algebra = partial(shield(algebra.attention_weights), *received)
    run = by_algebra if decision.run is None else partial(shield(decision.run), *received)
    finish = _first_head if query.ndim == key.ndim == 2 else None

    def bind(*_: Any, **__: Any) -> Run:
        return Run(
            backend=backend,
            call=call,
            decision=decision,
            arguments=given,
            options={"mask": p.mask, "bias": p.bias},
            compute=run,
            algebra=by_algebra,
            empty=partial(backend.placeholder, (*p.rows_shape[:-1], len(rows), len(cols)), p.query.dtype, p.device),
        )

    return Plan(lambda *_, **__: run() if finish is None else finish(run()), bind, finish=finish)


def _first_head(weights: Array) -> Array:
    return weights[0, ...]


def _no_key(arguments: tuple[Any, ...], options: Mapping[str, Any]) -> Key:
    return None


state_operation = attention_operation(lse=True)
weights_operation = Operation(_no_key, _plan_weights)
"""attention_weights(query, key, lse, rows, cols, **options); planned each time."""
