"""The gradients of attention as an operation, and attention on recorded arrays, whose pullback it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from functools import partial
from typing import Any

from ..algebra import attention_vjp as algebra
from ..algebra.arrays import Array, device_of
from ..algebra.attention_vjp import AttentionGradients
from ..algebra.problem import AttentionProblem
from ..algebra.state import AttentionState
from ..autodiff.recorded import Recorded, plain_value
from ..autodiff.score_function import ScoreFunction
from ..dispatch.backend import LoadedBackend
from ..dispatch.contract import Call
from ..dispatch.kernels import Decision, decide, describe
from ..dispatch.selection import backend_of
from .attend import arrays_inside, attention_operation, prepare, settings_of, template
from .differentiable import recorded_state
from .operation import Operation, PendingCall, Plan, key_of
from .tree import arrays_in, map_arrays

_NAMES = ("query", "key", "value", "sink", "out", "lse", "d_out", "d_lse")


def _choose(
    p: AttentionProblem,
    backend: LoadedBackend,
    d_out: Array | None,
    d_lse: Array | None,
    wanted: Set[str],
    state_features: frozenset[str],
) -> tuple[Call, Decision]:
    """Choose a kernel; ``state_features``: those that arrays, or the state of the library, require."""
    arrays = {"query": p.query, "key": p.key, "value": p.value, "sink": p.sink, "d_out": d_out, "d_lse": d_lse}
    added = {f"d_{name}" for name in ("bias", "sink") if name in wanted} | ({"d_lse"} if d_lse is not None else set())
    options = {**settings_of(p), "wanted": frozenset(wanted)}
    features = p.features - p.asked | state_features | added
    call = describe("attention_vjp", arrays, features=features, options=options)
    return call, decide(backend.name, call)


def attend_vjp(
    p: AttentionProblem,
    state: AttentionState,
    d_out: Array | None,
    d_lse: Array | None,
    wanted: Set[str],
    *,
    asked: frozenset[str] = frozenset(),
) -> AttentionGradients:
    """Return the gradients by the first kernel of ``attention_vjp`` that supports the problem, for a kernel made of others.

    ``asked``: features that it must also handle, such as ``"gradient"``.
    """
    backend = backend_of({"query": p.query})
    arrays = (p.query, p.key, p.value, p.sink, *state, d_out, d_lse, *arrays_inside(p))
    features, shield = backend.shielded(backend.features(arrays))
    p = p.with_arrays(p.query, p.key, p.value, asked=frozenset())
    _, decision = _choose(p, backend, d_out, d_lse, wanted, features | asked)
    d_out = p.xp.zeros_like(state.out) if d_out is None else d_out
    run = shield(algebra.attention_vjp if decision.run is None else decision.run)
    gradients: AttentionGradients = run(p, state, d_out, d_lse, wanted)
    return gradients


def recorded_attention(lse: bool, *arrays: Any, **options: Any) -> AttentionState:
    """Return attention on query, key, value and sink, some of which are recorded, or the array of the bias.

    Raises TypeError if another option is recorded, or several arrays of a bias: their gradients would be lost.
    """
    recorded: dict[str, list[Any]] = {
        name: [x for x in arrays_in(value) if isinstance(x, Recorded)] for name, value in options.items()
    }
    bias: Any = options.get("bias")
    is_function, of_bias = isinstance(bias, ScoreFunction), recorded.pop("bias", [])
    named = {("bias", at): x for at, x in enumerate(bias.inputs if is_function else of_bias[:1])}
    more = [] if is_function else of_bias[1:]
    for name, arrays_without_rule in {**recorded, "a second array of the bias": more}.items():
        if arrays_without_rule:
            raise TypeError(
                f"{name} has no rule for gradients: pass a plain number or array; a learned scale can multiply the query"
            )
    inputs: dict[Any, Any] = dict(zip(("query", "key", "value", "sink"), arrays, strict=True)) | named
    active = {name: x for name, x in inputs.items() if isinstance(x, Recorded)}
    wanted = frozenset("bias" if name in named else name for name in active)
    values, plain = [plain_value(x) for x in arrays], map_arrays(options, plain_value)
    state: AttentionState = state_operation(*values, **plain)

    def pull(d: AttentionState) -> Mapping[str, Array | None]:
        gradients: AttentionGradients = attention_gradients(*values, *state, *d, wanted=wanted, **plain)
        by_name: dict[Any, Any] = gradients._asdict()
        of_bias = by_name.pop("bias")
        return by_name | {("bias", at): d for at, d in enumerate(of_bias if is_function and of_bias else [of_bias])}

    result: Any = state if lse else state._replace(lse=None)  # type: ignore[arg-type]
    return recorded_state(active, result, pull, (*arrays, *arrays_in(options)), fresh=True)


def _plan(arrays: tuple[Any, ...], options: Mapping[str, Any], kept: bool) -> Plan:
    """Return the plan of gradients: a kernel receives the problem, the state, d_out, d_lse, and the names of what is wanted."""
    query, key, value, sink, _, _, d_out, d_lse = arrays
    problem_options = dict(options)
    wanted = problem_options.pop("wanted")
    backend, p = prepare(query, key, value, sink=sink, **problem_options)
    features, shield = backend.shielded(backend.features((p.query, p.key, p.value, p.sink, d_out, d_lse, *arrays_inside(p))))
    call, decision = _choose(p, backend, d_out, d_lse, wanted, features)
    by_algebra = shield(algebra.attention_vjp)
    kernel = by_algebra if decision.run is None else shield(decision.run)
    fill: Callable[..., AttentionProblem] = template(p, query, key, value)[0] if kept else lambda *_, **__: p
    without_heads = query.ndim == key.ndim == value.ndim == 2
    shapes = {name: tuple(x.shape) for name, x in zip(_NAMES, (query, key, value), strict=False)}

    def run(function: Callable[..., AttentionGradients], p: AttentionProblem, outputs: tuple[Any, ...]) -> AttentionGradients:
        out, lse, d_out, d_lse = (x if x is None or not without_heads else x[None, ...] for x in outputs)
        d_out = p.xp.zeros_like(out) if d_out is None else d_out
        gradients = function(p, AttentionState(out, lse), d_out, d_lse, wanted)
        # a wrong kernel may return another type, which ``verify`` reports
        return _in_shape(p, shapes, gradients) if isinstance(gradients, AttentionGradients) else gradients

    def compute(*arrays: Any) -> AttentionGradients:
        return run(kernel, fill(*arrays[:3], sink=arrays[3]), arrays[4:])

    def bind(*arrays: Any) -> PendingCall:
        p, outputs = fill(*arrays[:3], sink=arrays[3]), arrays[4:]
        named = {name: x for name, x in zip(_NAMES, arrays, strict=True) if x is not None}

        def again(function: Callable[[Any], Any]) -> AttentionGradients:
            wide = map_arrays({**named, **problem_options}, function)
            _, q = prepare(**{name: x for name, x in wide.items() if name not in _NAMES[4:]})
            return run(algebra.attention_vjp, q, map_arrays(outputs, function))

        return PendingCall(
            backend=backend,
            call=call,
            decision=decision,
            arguments=named,
            options={**problem_options, "scale": p.scale, "query_offset": p.offset, "wanted": wanted},
            compute=partial(run, kernel, p, outputs),
            algebra=partial(run, by_algebra, p, outputs),
            empty=partial(_placeholders, backend, p, named, wanted),
            again=again,
        )

    return Plan(compute, bind)


def _in_shape(p: AttentionProblem, shapes: Mapping[str, tuple[int, ...]], gradients: AttentionGradients) -> AttentionGradients:
    """Return gradients in the shapes of the caller's arrays: 0 for keys that were dropped, and without an added head axis."""
    xp, keys = p.xp, p.structure.keys

    def in_shape(name: str, d: Array) -> Array:
        shape = shapes[name]
        if name != "query" and len(keys) != shape[-2]:
            before, after = (
                xp.zeros((*d.shape[:-2], n, d.shape[-1]), dtype=d.dtype, device=device_of(d))
                for n in (keys.start, shape[-2] - keys.stop)
            )
            d = xp.concat([before, d, after], axis=-2)
        return d[0, ...] if len(shape) == 2 else d

    changed = {name: d for name, d in gradients._asdict().items() if name in shapes and d is not None}
    return gradients._replace(**{name: in_shape(name, d) for name, d in changed.items()})


def _placeholders(
    backend: LoadedBackend, p: AttentionProblem, arrays: Mapping[str, Array], wanted: frozenset[str]
) -> AttentionGradients:
    def placeholder(x: Any) -> Any:
        return tuple(map(placeholder, x)) if type(x) is tuple else backend.placeholder(tuple(x.shape), x.dtype, p.device)

    of_bias = [] if p.bias is None else [x for _, x in p.bias.arrays()]
    inputs = {**arrays, "bias": tuple(of_bias) if isinstance(p.bias, ScoreFunction) else next(iter(of_bias), None)}
    return AttentionGradients(**{name: placeholder(x) for name, x in inputs.items() if x is not None and name in wanted})


state_operation = attention_operation(recorded_attention, lse=True)
attention_gradients = Operation(partial(key_of, "attention_vjp"), _plan, plans_hold_options=True)
"""attention_vjp(query, key, value, sink, out, lse, d_out, d_lse, *, wanted, **options) -> AttentionGradients."""
