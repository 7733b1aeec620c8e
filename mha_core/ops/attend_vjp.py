"""The gradients of attention as an operation, and attention on recorded arrays, whose pullback it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from ..algebra.arrays import Array, device_of, is_array
from ..algebra.attention_vjp import AttentionGradients, attention_vjp
from ..algebra.problem import AttentionProblem
from ..algebra.state import AttentionState
from ..algebra.visibility import template
from ..autodiff.recorded import Recorded, plain_value
from ..dispatch.backend import LoadedBackend
from ..dispatch.kernels import decide
from ..dispatch.problems import attention_vjp_call
from .differentiable import recorded_state
from .operation import Operation, Plan, Run, key_of
from .prepare import prepare
from .tree import arrays_in, map_arrays

_NAMES = ("query", "key", "value", "sink", "out", "lse", "d_out", "d_lse")


def is_recorded(arrays: tuple[Any, ...], options: Mapping[str, Any]) -> bool:
    """Return whether a gradient of any array is recorded, those inside a bias included."""
    return any(isinstance(x, Recorded) for x in arrays) or any(isinstance(x, Recorded) for x in arrays_in(options))


def recorded_attention(operation: Operation, lse: bool, *arrays: Any, **options: Any) -> AttentionState:
    """Return attention on query, key, value and sink, some of which are recorded, or the array of the bias.

    Raises TypeError if another option is recorded, or several arrays of a bias: their gradients would be lost.
    """
    recorded: dict[str, list[Any]] = {
        name: [x for x in arrays_in(value) if isinstance(x, Recorded)] for name, value in options.items()
    }
    bias, *more = recorded.pop("bias", []) or [None]
    for name, found in {**recorded, "a second array of the bias": more}.items():
        if found:
            raise TypeError(
                f"{name} has no rule for gradients: pass a plain number or array; a learned scale can multiply the query"
            )
    inputs = dict(zip(("query", "key", "value", "sink", "bias"), (*arrays, bias), strict=True))
    active = {name: x for name, x in inputs.items() if isinstance(x, Recorded)}
    wanted = frozenset(active)
    values, plain = [plain_value(x) for x in arrays], map_arrays(options, plain_value)
    state: AttentionState = operation(*values, **plain)

    def pull(d: AttentionState) -> Mapping[str, Array | None]:
        found: AttentionGradients = attention_gradients(*values, *state, *d, wanted=wanted, **plain)
        return found._asdict()

    return recorded_state(active, state if lse else state._replace(lse=None), pull)  # type: ignore[arg-type]


def _plan(arrays: tuple[Any, ...], options: Mapping[str, Any], kept: bool) -> Plan:
    """Return the plan of gradients: a kernel receives the problem, the state, d_out, d_lse, and the names of what is wanted."""
    query, key, value, sink, _, _, d_out, d_lse = arrays
    others = dict(options)
    wanted = others.pop("wanted")
    backend, p = prepare(query, key, value, sink=sink, **others)
    given = (p.query, p.key, p.value, p.sink, d_out, d_lse)
    asked, shield = backend.shielded(backend.features((*given, *arrays_in((p.mask, p.bias)))))
    call = attention_vjp_call(p, d_out, d_lse, wanted, asked)
    decision = decide(backend.name, call)
    by_algebra = shield(attention_vjp)
    run = by_algebra if decision.run is None else shield(decision.run)
    fill: Callable[..., AttentionProblem] = template(p, query, key, value)[0] if kept else lambda *_: p
    without_heads = query.ndim == key.ndim == value.ndim == 2
    finish = partial(_in_shape, backend, p.structure.keys, *(tuple(x.shape) for x in (query, key, value)))

    def prepared(*arrays: Any) -> tuple[AttentionProblem, AttentionState, Array, Array | None]:
        p, rest = fill(*arrays[:4]), arrays[4:]
        out, lse, d_out, d_lse = (x if x is None or not without_heads else x[None, ...] for x in rest)
        return p, AttentionState(out, lse), p.xp.zeros_like(out) if d_out is None else d_out, d_lse

    def compute(*arrays: Any) -> AttentionGradients:
        return finish(run(*prepared(*arrays), wanted))

    def bind(*arrays: Any, **_: Any) -> Run:
        p, *rest = prepared(*arrays)
        named = {name: x for name, x in zip(_NAMES, arrays, strict=True) if x is not None}

        def again(function: Callable[[Any], Any]) -> AttentionGradients:
            wide = map_arrays({**named, **others}, function)
            _, q = prepare(**{name: x for name, x in wide.items() if name not in _NAMES[4:]})
            state, d_out, d_lse = map_arrays(tuple(rest), function)
            return attention_vjp(q, state, d_out, d_lse, wanted)

        return Run(
            backend=backend,
            call=call,
            decision=decision,
            arguments=named,
            options={**others, "scale": p.scale, "query_offset": p.offset, "wanted": wanted},
            compute=partial(run, p, *rest, wanted),
            algebra=partial(by_algebra, p, *rest, wanted),
            empty=partial(_empty, backend, p, wanted),
            again=again,
        )

    return Plan(compute, bind, has_options=True, finish=finish)


def _in_shape(backend: LoadedBackend, keys: range, *shapes_and_found: Any) -> AttentionGradients:
    """Return gradients in the shapes of the caller's arrays: 0 for keys that were dropped, and without an added head axis."""
    xp, (*shapes, found) = backend.xp, shapes_and_found

    def of(name: str, shape: tuple[int, ...], d: Array | None) -> Array | None:
        if d is None:
            return None
        if name != "query" and len(keys) != shape[-2]:
            before, after = (
                xp.zeros((*d.shape[:-2], n, d.shape[-1]), dtype=d.dtype, device=device_of(d))
                for n in (keys.start, shape[-2] - keys.stop)
            )
            d = xp.concat([before, d, after], axis=-2)
        return d[0, ...] if len(shape) == 2 else d

    named = zip(AttentionGradients._fields[:3], shapes, found[:3], strict=True)
    in_shape: AttentionGradients = found._replace(**{name: of(name, shape, d) for name, shape, d in named})
    return in_shape


def _empty(backend: LoadedBackend, p: AttentionProblem, wanted: frozenset[str]) -> AttentionGradients:
    bias = next((x for x in arrays_in(p.bias) if is_array(x)), None)
    arrays = {"query": p.query, "key": p.key, "value": p.value, "bias": bias, "sink": p.sink}
    given = {name: x for name, x in arrays.items() if x is not None and name in wanted}
    return AttentionGradients(**{name: backend.placeholder(tuple(x.shape), x.dtype, p.device) for name, x in given.items()})


attention_gradients = Operation(partial(key_of, "attention_vjp"), _plan)
"""attention_vjp(query, key, value, sink, out, lse, d_out, d_lse, *, wanted, **options) -> AttentionGradients."""
