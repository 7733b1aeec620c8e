"""Attention as an operation: a call is checked and becomes an ``AttentionProblem``, for which a kernel is chosen.

Unseen keys are dropped or zeroed, and the mask is reduced to its structure. The algebra and every kernel receive the same
problem, so the promises hold for all of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from ..algebra import attention as algebra
from ..algebra.arrays import Array, compute_dtype
from ..algebra.biases import Bias, as_bias
from ..algebra.dropout import WeightDropout
from ..algebra.expressions import Mask, as_mask
from ..algebra.functions import is_floating
from ..algebra.grid import check_aligned, check_integers
from ..algebra.independence import independent_rows
from ..algebra.int8 import Int8Rows, Rows
from ..algebra.problem import AttentionProblem, scores_shape
from ..algebra.state import AttentionState
from ..algebra.structure import structure_of
from ..algebra.visibility import seen_keys, without_unseen_keys
from ..autodiff.recorded import Recorded
from ..autodiff.score_function import ScoreFunction
from ..dispatch.advice import cast
from ..dispatch.backend import LoadedBackend
from ..dispatch.context import ALGEBRA, NO_DEMANDS, Demands, demands
from ..dispatch.contract import STATE_FEATURES, Call
from ..dispatch.kernels import Decision, decide, describe
from ..dispatch.selection import backend_of, check_floating, check_same_device, in_host_memory
from . import check
from .int8 import NO_GRADIENTS_OF_ROWS, check_rows, int8_arrays, joining_scales, widened
from .operation import Operation, PendingCall, Plan, key_of
from .options import unknown
from .tree import arrays_in


def prepare(
    query: Array,
    key: Rows,
    value: Rows,
    *,
    mask: Mask | Array | None = None,
    bias: Bias | Array | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sink: Array | None = None,
    query_offset: int | Array | None = None,
    weight_dropout: WeightDropout | None = None,
    **unknown_names: Any,
) -> tuple[LoadedBackend, AttentionProblem]:
    """Return the backend and a valid problem, in which every array has a head axis."""
    if unknown_names:
        raise unknown(unknown_names)
    mask = None if mask is None else as_mask(mask)
    bias = None if bias is None else as_bias(bias)
    if weight_dropout is not None and not isinstance(weight_dropout, WeightDropout):
        raise TypeError(
            f"weight_dropout is {type(weight_dropout).__name__}; expected mha.weight_dropout(rate, seed=...), or with keep=..."
        )
    offset = 0 if query_offset is None else check.offset(query_offset)
    added = [] if sink is None else [("sink", sink)]
    added += [] if bias is None else bias.arrays()
    checked = [] if isinstance(offset, int) else [("query_offset", offset)]
    checked += [] if mask is None else mask.arrays()
    checked += [] if weight_dropout is None else weight_dropout.arrays()
    backend = check_floating(query=query) if isinstance(key, Int8Rows) else check_floating(query=query, key=key, value=value)
    for name, x in (("key", key), ("value", value)):
        if isinstance(x, Int8Rows):
            check_rows(backend, name, x, query)
    check_same_device(query, [*checked, *added])

    shape = scores_shape(query, key, value, sink)
    query, key, value = _with_head_axis(query, key, value)
    xp, head_dim = backend.xp, query.shape[-1]
    if not isinstance(offset, int):
        check_integers(xp, "query_offset", offset, shape[:-3], "the batch shape")
    for name, x in added:
        if not isinstance(bias, ScoreFunction) or is_floating(xp, x):  # it may read the numbers of documents
            _check_added(backend, name, x, query)
    for name, term in (("mask", mask), ("bias", bias), ("weight_dropout", weight_dropout)):
        for part in () if term is None else term.walk():
            part.check(xp, shape)
            check_aligned(name, part, query_offset, shape)
    structure = structure_of(xp, mask, num_queries=shape[-2], num_keys=shape[-1], offset=offset)
    whole = structure.keeps_all(shape[-1])
    kept = slice(structure.keys.start, structure.keys.stop)
    problem = AttentionProblem(
        xp=xp,
        query=query,
        key=key if whole else key[..., kept, :],
        value=value if whole else value[..., kept, :],
        structure=structure,
        scale=(1 / math.sqrt(head_dim) if head_dim else 1.0) if scale is None else check.number("scale", scale),
        mask=mask,
        bias=bias,
        softcap=None if softcap is None else check.number("softcap", softcap, above_zero=True),
        sink=sink,
        offset=offset,
        dropout=weight_dropout,
    )
    return backend, problem if structure.sees_every_key else without_unseen_keys(problem)


def template(p: AttentionProblem, query: Array, key: Rows, value: Rows) -> tuple[Callable[..., AttentionProblem], bool]:
    """Return a function (query, key, value, sink=sink) -> problem, and whether it lets the arrays enter unchanged.

    The function makes a problem like ``p`` from arrays like those that ``p`` was made from, and holds no array itself.
    """
    reached = p.structure.keys
    keys = None if p.structure.keeps_all(key.shape[-2]) else (..., slice(reached.start, reached.stop), slice(None))
    zeroes = not p.structure.sees_every_key and seen_keys(p) is not None  # finding out in each call takes as long as zeroing
    as_given = keys is None and 2 not in (query.ndim, key.ndim, value.ndim)
    nothing: Any = None
    bare = p.with_arrays(nothing, nothing, nothing, sink=None)
    if as_given and not zeroes:
        return bare.with_arrays, True

    def fill(query: Array, key: Rows, value: Rows, *, sink: Array | None) -> AttentionProblem:
        query, key, value = _with_head_axis(query, key, value)
        if keys is not None:
            key, value = key[keys], value[keys]
        filled = bare.with_arrays(query, key, value, sink=sink)
        return without_unseen_keys(filled) if zeroes else filled

    return fill, False


def _with_head_axis(*arrays: Any) -> Iterator[Any]:
    return (x[None, ...] if x.ndim == 2 else x for x in arrays)


def _check_added(backend: LoadedBackend, name: str, x: Array, query: Array) -> None:
    """Raise TypeError unless an array that is added to the scores has the query's dtype, or that of the scores."""
    if x.dtype not in (query.dtype, compute_dtype(backend.xp, query.dtype)):
        wanted = cast(backend, name, x, query.dtype)
        raise TypeError(f"{name} has dtype {x.dtype}, but query has {query.dtype}: write {wanted}")


def arrays_inside(p: AttentionProblem) -> Iterator[Array]:
    """Yield the arrays inside the mask and the bias, which may require a gradient too."""
    return (x for term in (p.mask, p.bias) if term is not None for _, x in term.arrays())


def settings_of(p: AttentionProblem) -> dict[str, Any]:
    """Return the options of a ``Call`` of attention, or of its gradients."""
    settings = {"band": p.structure.band, "packed": p.structure.packed, "scale": p.scale, "softcap": p.softcap}
    return settings | {"query_offset": p.offset if isinstance(p.offset, int) else None}  # None: an array


def _choose(p: AttentionProblem, backend: LoadedBackend, demand: Demands | None = None) -> tuple[Call, Decision]:
    arrays = {"query": p.query, "key": p.key, "value": p.value, "sink": p.sink}
    call = describe("attention", arrays, features=p.features, options=settings_of(p))
    return call, decide(backend.name, call, demand)


def attend(p: AttentionProblem) -> AttentionState:
    """Return out and lse by the first kernel that supports the problem, for a kernel that records the gradient itself.

    The caller's demands are not followed: they are about the kernel that calls this.
    """
    backend = backend_of({"query": p.query})
    features, shield = backend.shielded(backend.features((*arrays_in((p.query, p.key, p.value)), p.sink, *arrays_inside(p))))
    p = p.with_arrays(p.query, p.key, p.value, asked=features - {"gradient"} | {"lse"})
    _, decision = _choose(p, backend, NO_DEMANDS)
    state: AttentionState = shield(algebra.attention_state if decision.run is None else decision.run)(p)
    return state


def attention_operation(recorded: Callable[..., AttentionState], *, lse: bool) -> Operation:
    """Return attention(query, key, value, sink, **options); without ``lse``, a kernel may return a state whose lse is None.

    ``recorded(lse, query, key, value, sink, **options)`` computes it if the gradient of an array is recorded.
    """

    def plan(arrays: tuple[Any, ...], options: Mapping[str, Any], kept: bool) -> Plan:
        return _plan(operation, recorded, lse, arrays, options, kept)

    operation = Operation(partial(key_of, ("attention", lse)), plan, plans_hold_options=True)
    return operation


def _plan(
    operation: Operation,
    recorded: Callable[..., AttentionState],
    lse: bool,
    arrays: tuple[Any, ...],
    options: Mapping[str, Any],
    kept: bool,
) -> Plan:
    inside = () if kept else arrays_in(options)  # a call with arrays in its options has no key
    query, key, value, sink, *scales = arrays  # scales: of keys and values in int8
    if not kept and (isinstance(key, Int8Rows) or isinstance(value, Int8Rows)):  # they have no dtype, and so no key
        return Plan(lambda *arrays: operation(*int8_arrays(*arrays), **options), None)
    if any(isinstance(x, Recorded) for x in (*arrays, *inside)):
        if scales:
            raise TypeError(NO_GRADIENTS_OF_ROWS)
        return Plan(partial(recorded, lse, **options), None)
    if scales:
        key, value = map(Int8Rows, (key, value), scales)
    backend, p = prepare(query, key, value, sink=sink, **options)
    features, shield = backend.shielded(backend.features((*arrays, *arrays_inside(p))))
    if scales and features & {"gradient", "forward_gradient"}:
        raise TypeError(NO_GRADIENTS_OF_ROWS)
    p = p.with_arrays(p.query, p.key, p.value, asked=features | {"lse"} if lse else features)
    call, decision = _choose(p, backend)
    if scales and decision.run is None and _has_kernel_for_floats(p, backend, call):
        return Plan(partial(widened, operation, backend, options), None)
    fill: Callable[..., AttentionProblem]
    fill, unchanged = template(p, query, key, value) if kept else (lambda *_, **__: p, False)
    prepared = decision.prepared(p) if kept and decision.prepared is not None else None
    by_algebra = shield(_algebra(backend))
    run = by_algebra if decision.run is None else shield(decision.run)
    if prepared is not None:
        prepared = shield(prepared)
        run = partial(_run_prepared, prepared)
    direct = prepared if unchanged else None
    if _finds_nan(p):
        again = partial(independent_rows, attend=by_algebra)
        if direct is not None:
            direct = _independent(backend, direct, lambda *arrays: again(fill(*arrays[:3], sink=arrays[3])))
        run, by_algebra = (_independent(backend, function, again) for function in (run, by_algebra))
    without_heads = all(x.ndim == 2 for x in (query, key, value))
    placeholder = partial(_placeholder, backend)
    if without_heads:
        run, by_algebra, placeholder = (partial(_without_head_axis, function) for function in (run, by_algebra, placeholder))

    def compute(query: Array, key: Rows, value: Rows, sink: Array | None) -> AttentionState:
        return run(fill(query, key, value, sink=sink))

    def bind(query: Array, key: Rows, value: Rows, sink: Array | None) -> PendingCall:
        p = fill(query, key, value, sink=sink)
        return PendingCall(
            backend=backend,
            call=call,
            decision=decision,
            arguments={"query": p.query, "key": p.key, "value": p.value, "sink": p.sink},
            options={**options, "scale": p.scale, "query_offset": p.offset, "problem": p},
            compute=partial(run, p),
            algebra=partial(by_algebra, p),
            empty=partial(placeholder, p),
        )

    if scales:
        return Plan(joining_scales(compute), joining_scales(bind))
    return Plan(compute if direct is None else direct, bind)


def _has_kernel_for_floats(p: AttentionProblem, backend: LoadedBackend, call: Call) -> bool:
    """Return whether a kernel would compute a problem of int8 rows if its keys and values were floating numbers."""
    if p.bias is not None and p.query.dtype != p.compute_dtype:  # the bias may have the dtype of the query
        return False
    return decide(backend.name, replace(call, features=call.features - {"int8"}, dtype=p.compute_dtype)).run is not None


def _finds_nan(p: AttentionProblem) -> bool:
    """Return whether NaN is looked for in the result: some queries see fewer keys than others, and reading it waits for nobody.

    On a GPU it would wait for the device; in a traced function, and under vmap, there is nothing to read. A kernel that is
    demanded by name computes alone.
    """
    demand = demands.get()
    if demand.alone or dict(demand.kernels).get("attention", ALGEBRA) != ALGEBRA:
        return False
    if not p.structure.features or p.asked & STATE_FEATURES - {"gradient"} or 0 in (*p.rows_shape, p.value.shape[-1]):
        return False
    rows = (x.scale if isinstance(x, Int8Rows) else x for x in (p.key, p.value))
    return all(x is None or in_host_memory(x) for x in (p.query, *rows, p.sink, *arrays_inside(p)))


def _algebra(backend: LoadedBackend) -> Callable[[AttentionProblem], AttentionState]:
    """Return the algebra, which gives infinity and NaN for infinity and NaN, where NumPy would also warn of inf - inf."""

    def computed(p: AttentionProblem) -> AttentionState:
        with backend.quiet():
            return algebra.attention_state(p)

    return computed


def _independent(backend: LoadedBackend, run: Callable[..., Any], again: Callable[..., AttentionState]) -> Callable[..., Any]:
    """Return a function that computes attention by ``run``, and if the result has NaN, once more by ``again``."""

    def computed(*arguments: Any) -> Any:
        state = run(*arguments)
        if not isinstance(state, AttentionState) or not backend.has_nan(state.out):
            return state
        with backend.quiet():
            return again(*arguments)

    return computed


def _run_prepared(prepared: Callable[..., AttentionState], p: AttentionProblem) -> AttentionState:
    return prepared(p.query, p.key, p.value, p.sink)


def _without_head_axis(run: Callable[[AttentionProblem], AttentionState], p: AttentionProblem) -> AttentionState:
    state = run(p)
    if not isinstance(state, AttentionState):
        return state  # by a wrong kernel, which ``verify`` reports
    return AttentionState(state.out[0, ...], state.lse if state.lse is None else state.lse[0, ...])


def _placeholder(backend: LoadedBackend, p: AttentionProblem) -> AttentionState:
    out = backend.placeholder((*p.rows_shape, p.value.shape[-1]), p.query.dtype, p.device)
    return AttentionState(out, backend.placeholder(p.rows_shape, p.compute_dtype, p.device))
