"""The factory of elementary operations and their gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from ..algebra.arrays import Array, Namespace, device_of
from ..autodiff.recorded import Recorded, plain_value
from ..dispatch.backend import LoadedBackend
from ..dispatch.context import dry_run
from ..dispatch.contract import Call
from ..dispatch.kernels import decide, describe
from ..dispatch.selection import backend_of, check_floating, find_backend
from .operation import Operation, PendingCall, Plan, key_of
from .tree import arrays_in, map_arrays


@dataclass(frozen=True, slots=True)
class Examined:
    """A call whose arguments have been checked, and what the choice of a kernel needs to know about it."""

    backend: LoadedBackend
    algebra: Callable[..., Any]
    """Called with the arguments of the operation."""
    shape: tuple[int, ...] | None
    """The shape of the result; None if it is a tuple of arrays."""
    features: Iterable[str] = ()
    like: Iterable[str | None] = ()
    """For a tuple of arrays, the arguments that they are like; None where the result is None."""
    settings: Iterable[tuple[str, Any]] = ()
    """Options that the choice of a kernel may depend on."""


def elementary(
    name: str,
    names: tuple[str, ...],
    algebra: Callable[..., Array],
    *,
    optional: Iterable[str] = (),
    vjp: Callable[..., tuple[Array | None, ...]],
    validate: Callable[..., None] | None = None,
    shape: Callable[..., tuple[int, ...]] | None = None,
) -> Operation:
    """Return an operation on floating arrays of one library, dtype and device, and register its gradients as another one.

    Parameters
    ----------
    name : as in ``Call.op``
    names : the names of the arrays, in order; those in ``optional`` may be None
    algebra : called as ``algebra(xp, *arrays, **options)``; a kernel is called without ``xp``
    vjp : called as ``vjp(xp, *arrays, d_out, wanted=names, **options)``
        Returns the gradients of the arrays in ``wanted``, and None for the others.
    validate : function of the arrays that raises for shapes that do not fit
    shape : function of the arrays that returns the shape of the result, by default that of the first array
    """

    def named(*arrays: Any, **options: Any) -> dict[str, Any]:
        return dict(zip(names, arrays, strict=True))

    def plan(arrays: tuple[Any, ...], options: Mapping[str, Any], kept: bool) -> Plan:
        backend = check_floating(**{k: x for k, x in named(*arrays).items() if x is not None or k not in optional})
        if backend.plain is not None:
            return Plan(partial(recorded, backend, operation, gradients, names), None)
        if validate is not None:
            validate(*arrays)
        xp, first = backend.xp, arrays[0]
        if first.ndim == 0:  # NumPy's functions return a scalar, which is not an array, for an array without axes
            return _without_axes(xp, plan((xp.reshape(first, (1,)), *arrays[1:]), options, kept))
        result = shape(*arrays) if shape else tuple(first.shape)
        examined = Examined(backend, partial(algebra, xp), result, settings=options.items())
        return planned(name, named, examined, arrays, options)

    gradients = gradients_operation(name, names, vjp)
    operation = Operation(partial(key_of, name), plan)
    return operation


def _without_axes(xp: Namespace, plan: Plan) -> Plan:
    """Return the plan for a first array of shape () from that for one of shape (1,)."""
    bind = plan.bind
    assert bind is not None

    def of_number(function: Callable[..., Any]) -> Callable[..., Any]:
        return lambda x, *rest, **options: function(xp.reshape(x, (1,)), *rest, **options)

    def to_number(function: Callable[..., Array]) -> Callable[..., Array]:
        return lambda *arrays, **options: xp.reshape(function(*arrays, **options), ())

    def bind_number(*arrays: Any, **options: Any) -> PendingCall:
        pending: PendingCall = of_number(bind)(*arrays, **options)
        compute, algebra, empty = map(to_number, (pending.compute, pending.algebra, pending.empty))
        return replace(pending, compute=compute, algebra=algebra, empty=empty)

    return Plan(to_number(of_number(plan.compute)), bind_number)


def gradients_operation(name: str, names: tuple[str, ...], vjp: Callable[..., tuple[Array | None, ...]]) -> Operation:
    """Return the operation ``name_vjp``: the gradients of an operation's arrays, from these, ``d_out`` and ``wanted``."""

    def named(*arrays: Any, **options: Any) -> dict[str, Any]:
        return dict(zip((*names, "d_out"), arrays, strict=True))

    def plan(arrays: tuple[Any, ...], options: Mapping[str, Any], kept: bool) -> Plan:
        backend = backend_of({name: x for name, x in named(*arrays).items() if x is not None})
        like = [name if name in options["wanted"] else None for name in names]
        examined = Examined(backend, partial(vjp, backend.xp), None, like=like, settings=options.items())
        return planned(f"{name}_vjp", named, examined, arrays, options)

    return Operation(partial(key_of, f"{name}_vjp"), plan, at=len(names))


def recorded(
    backend: LoadedBackend, operation: Operation, gradients: Operation, names: tuple[str, ...], *arrays: Any, **options: Any
) -> Recorded:
    """Return the result of an operation as a node of the tape, with the operation that gives its gradients as pullback."""
    values = [plain_value(x) for x in arrays]
    active = [at for at, x in enumerate(arrays) if isinstance(x, Recorded)]
    wanted = frozenset(names[at] for at in active)

    def pull(d: Array) -> list[Array | None]:
        inputs = [*values, d]
        if d.ndim == 0:  # a gradient of one number
            inputs = [x if x is None or x.ndim else backend.xp.reshape(x, (1,)) for x in inputs]
        input_gradients = gradients(*inputs, wanted=wanted, **options)
        return [input_gradients[at] for at in active]

    nodes = [arrays[at].node for at in active]
    made: Recorded = backend.xp.record(operation(*values, **options), nodes, pull, arrays, fresh=True)
    return made


def planned(
    name: str,
    named: Callable[..., Mapping[str, Any]],
    examined: Examined,
    arguments: tuple[Any, ...],
    options: Mapping[str, Any],
    *,
    composite: bool = False,
) -> Plan:
    """Return the plan of a checked call. Before a kernel computes a composite, its smaller operations check their arguments."""
    backend, shape = examined.backend, examined.shape
    arrays = named(*arguments, **options)
    option_arrays = (x for x in arrays_in(options) if find_backend(x) is backend)  # an error will name the others
    features, shield = backend.shielded(backend.features((*arrays.values(), *option_arrays)))
    algebra = shield(examined.algebra)
    features = features.union(examined.features, unnamed(arrays, options))
    call = describe(name, arrays, features=features, options=dict(examined.settings))
    decision = decide(backend.name, call, composite=composite)
    if composite and decision.kernel is not None:
        check_smaller_operations(algebra, arguments, options)
    compute = algebra if decision.run is None else shield(decision.run)

    def bind(*arguments: Any, **options: Any) -> PendingCall:
        def again(function: Callable[[Any], Any]) -> Any:
            return algebra(*map_arrays(arguments, function), **map_arrays(options, function))

        arrays = named(*arguments, **options)
        return PendingCall(
            backend=backend,
            call=call,
            decision=decision,
            arguments=arrays,
            options=options,
            compute=partial(compute, *arguments, **options),
            algebra=partial(algebra, *arguments, **options),
            empty=partial(empty, backend, examined, call, arrays),
            again=again if composite or shape is None else None,
            is_composite=composite,
        )

    return Plan(compute, bind)


def unnamed(named: Mapping[str, Any], values: Any) -> Iterable[str]:
    """Return the feature ``recorded``, which no kernel declares, if arrays beside those given by name are recorded."""
    known = {id(x) for x in named.values()}
    return ["recorded"] if any(isinstance(x, Recorded) and id(x) not in known for x in arrays_in(values)) else []


def empty(backend: LoadedBackend, examined: Examined, call: Call, arrays: Mapping[str, Any]) -> Any:
    """Return a placeholder of the result."""
    if examined.shape is not None:
        return backend.placeholder(examined.shape, call.dtype, device_of(next(iter(arrays.values()))))
    likes = (None if name is None else arrays[name] for name in examined.like)
    return tuple(None if x is None else backend.placeholder(tuple(x.shape), x.dtype, device_of(x)) for x in likes)


def check_smaller_operations(algebra: Callable[..., Any], arguments: tuple[Any, ...], options: Mapping[str, Any]) -> None:
    """Let the smaller operations of a composite check their arguments, without computing."""
    with dry_run(_check_only):
        algebra(*arguments, **options)


def _check_only(pending: PendingCall) -> Any:
    return pending.algebra() if pending.is_composite else pending.empty()
