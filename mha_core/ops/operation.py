"""How an operation is called: its arguments are checked and a kernel chosen once for each signature, and then it runs.

A signature is all that checks and choice depend on: types, shapes, dtypes and devices, options, what the caller demands, and
whether a gradient is recorded. No number in an array is ever looked at, so a decision may be kept, and a call like an earlier
one costs one lookup.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from ..algebra.arrays import Array, device_of
from ..algebra.grid import Term
from ..dispatch.backend import LoadedBackend
from ..dispatch.context import Demands, demands, dry_run, watched_by, watcher
from ..dispatch.contract import Call
from ..dispatch.kernels import Decision, decide
from ..dispatch.registry import on_change, registry
from ..dispatch.selection import by_type
from . import check
from .tree import arrays_in, map_arrays

# Of one operation, some 4 MB, and as much for what keys hold: shapes may go on changing for ever, and texts laid end to end
# have a thousand lengths in a key that never comes again.
_KEPT = 4096  # plans
_ITEMS = 2**17  # in their keys; 4096 plain keys have as many


@dataclass(frozen=True, slots=True)
class Plan:
    """What was decided for a signature."""

    backend: LoadedBackend
    call: Call
    decision: Decision
    compute: Callable[..., Any]


@dataclass(frozen=True)
class Run:
    """An operation about to be computed, as ``explain`` and ``verify`` are told of it.

    arguments: its arrays by name. compute, algebra: what was chosen, and the algebra, ready to be called. empty: a result of
    the right shape that costs nothing. again(function): of an operation made of smaller ones, the algebra with a function
    applied to every array.
    """

    backend: LoadedBackend
    call: Call
    decision: Decision
    arguments: Mapping[str, Any]
    options: Mapping[str, Any]
    compute: Callable[[], Any]
    algebra: Callable[[], Any]
    empty: Callable[[], Any]
    again: Callable[[Callable[[Any], Any]], Any] | None = None


class Kept:
    """Decisions by their key, forgotten when a plugin comes or goes.

    ``now`` is replaced then, never emptied: what was decided before a change and comes late is kept where nobody looks.
    """

    def __init__(self) -> None:
        self.now = Decisions()
        on_change(self._forget)

    def _forget(self) -> None:
        self.now = Decisions()


class Decisions(dict[Any, Any]):
    """Decisions by their key, and how many items their keys hold together."""

    items_held = 0


def keep(decisions: Decisions, key: Any, value: Any) -> None:
    """Add to decisions; all are forgotten where they, or what their keys hold, have become too many."""
    held = _items(key)
    if len(decisions) >= _KEPT or decisions.items_held + held > _ITEMS:
        decisions.clear()
        decisions.items_held = 0
    decisions.items_held += held
    decisions[key] = value


def _items(key: Any) -> int:
    return len(key) + sum(_items(x) for x in key if isinstance(x, tuple))


class Operation:
    """A public operation on arrays that are all floating, of one library, dtype and device.

    name: in ``Call.op``. arguments: their names, in order; those in ``optional`` may be None. algebra: ``algebra(xp, *arrays,
    **options)``. A kernel is called without ``xp``. validate(*arrays): raises for shapes that do not fit. shape(*arrays): of
    the result, that of the first array by default.
    """

    def __init__(
        self,
        name: str,
        arguments: tuple[str, ...],
        algebra: Callable[..., Array],
        *,
        optional: Iterable[str] = (),
        validate: Callable[..., None] | None = None,
        shape: Callable[..., tuple[int, ...]] | None = None,
    ) -> None:
        self.name, self.arguments, self.algebra, self.optional = name, arguments, algebra, frozenset(optional)
        self._validate, self._shape = validate, shape
        self._plans = Kept()

    def __call__(self, *arrays: Any, **options: Any) -> Array:
        plans = self._plans.now
        key: tuple[Any, ...] | None
        plan: Plan | None
        try:
            signature = [None if x is None else (type(x), x.shape, x.dtype, x.device) for x in arrays]
            key = (demands.get(), features_of(arrays), *options.values(), *signature)
            plan = plans.get(key)
        except (AttributeError, TypeError):  # no arrays, tracers without a device, devices without a hash
            key = self._key_by_name(arrays, options)
            plan = None if key is None else plans.get(key)  # without a key, all is checked each time
        if plan is None:
            plan = self._plan(arrays, options)
            if key is not None:
                keep(plans, key, plan)
        watch = watcher.get()
        if watch is not None:
            return watch(self._run(plan, arrays, options))
        return plan.compute(*arrays, **options)

    def _key_by_name(self, arrays: tuple[Any, ...], options: Mapping[str, Any]) -> tuple[Any, ...] | None:
        known = by_name(arrays)
        key = (demands.get(), *options.values(), *known)
        return key if known and is_hashable(key) else None

    def _plan(self, arrays: tuple[Any, ...], options: Mapping[str, Any]) -> Plan:
        given = {name: x for name, x in zip(self.arguments, arrays, strict=True) if x is not None or name not in self.optional}
        backend = check.arrays(**given)
        if self._validate is not None:
            self._validate(*arrays)
        first, xp = arrays[0], backend.xp
        if first.ndim == 0:  # NumPy's functions answer an array without axes with a scalar, which is no array
            plan = self._plan((xp.reshape(first, (1,)), *arrays[1:]), options)

            def compute(first: Array, *rest: Array, **options: Any) -> Array:
                return xp.reshape(plan.compute(xp.reshape(first, (1,)), *rest, **options), ())

            return Plan(backend, plan.call, plan.decision, compute)
        call = describe(self.name, given, features=features_of(arrays), options=options)
        decision = decide(backend.name, call)
        return Plan(backend, call, decision, decision.run or partial(self.algebra, xp))

    def _run(self, plan: Plan, arrays: tuple[Any, ...], options: Mapping[str, Any]) -> Run:
        shape = self._shape(*arrays) if self._shape else tuple(arrays[0].shape)
        return Run(
            backend=plan.backend,
            call=plan.call,
            decision=plan.decision,
            arguments=dict(zip(self.arguments, arrays, strict=True)),
            options=options,
            compute=partial(plan.compute, *arrays, **options),
            algebra=partial(self.algebra, plan.backend.xp, *arrays, **options),
            empty=partial(empty, plan.backend, shape, arrays[0]),
        )


_decisions = Kept()


def run_parts(
    op: str,
    backend: LoadedBackend,
    algebra: Callable[..., Array],
    arguments: tuple[Any, ...],
    options: Mapping[str, Any],
    *,
    arrays: Mapping[str, Array | None],
    shape: tuple[int, ...],
    features: Iterable[str] = (),
    settings: Iterable[tuple[str, Any]] = (),
) -> Array:
    """An operation that is made of smaller ones: ``algebra(*arguments, **options)``, or a kernel called alike.

    ``arrays``, ``features`` and ``settings`` are what kernels are chosen by; ``shape`` is the result's. Before a kernel runs,
    the parts of the algebra check the arguments and compute nothing: once for options that say the same in each call, and
    each time for those that hold arrays.
    """
    watch, demand = watcher.get(), demands.get()
    if watch is None and not demand.kernels and (backend.name, op) not in registry().kernels:
        return algebra(*arguments, **options)
    decisions = _decisions.now
    given = {name: x for name, x in arrays.items() if x is not None}
    asked = features_of((*given.values(), *arrays_in(options)))
    call = describe(op, given, features=asked.union(features), options=dict(settings))
    key = _key(demand, backend.name, call, {name: value for name, value in options.items() if name not in arrays})
    decision = decisions.get(key) if key is not None else None
    if decision is None:
        decision = decide(backend.name, call, demand, parts=True)
        if decision.kernel is not None:
            with watched_by(_only_checks), dry_run():
                algebra(*arguments, **options)
        if key is not None:
            keep(decisions, key, decision)
    compute = partial(decision.run or algebra, *arguments, **options)
    if watch is None:
        return compute()
    zeros = partial(empty, backend, shape, next(iter(given.values())))
    again = partial(_again, algebra, arguments, options)
    run = Run(backend, call, decision, given, options, compute, partial(algebra, *arguments, **options), zeros, again)
    return watch(run)


def _again(
    algebra: Callable[..., Any], arguments: tuple[Any, ...], options: Mapping[str, Any], function: Callable[[Any], Any]
) -> Any:
    return algebra(*map_arrays(arguments, function), **map_arrays(dict(options), function))


def _key(demand: Demands, backend: str, call: Call, options: Mapping[str, Any]) -> Any:
    """What equal calls have in common; None where an option holds arrays, which may be others in each."""
    values: list[Any] = []
    for name, value in options.items():
        known = value.key if isinstance(value, Term) else (type(value), value)
        if known is None or not isinstance(value, Term | int | float | str | None):
            return None
        values.append((name, known))
    return demand, backend, call, tuple(values)


def _only_checks(run: Run) -> Any:
    return run.empty() if run.again is None else run.algebra()


def describe(op: str, given: Mapping[str, Any], *, features: frozenset[str], options: Mapping[str, Any]) -> Call:
    """The record by which kernels are chosen."""
    first = next(iter(given.values()))
    shapes = tuple((name, tuple(x.shape)) for name, x in given.items())
    return Call(op, shapes, first.dtype, _hashable(device_of(first)), features, tuple(options.items()))


def _hashable(device: Any) -> Any:
    """A device as a ``Call`` can hold it: by its name where the library gave its devices no hash, as CuPy did."""
    return str(device) if type(device).__hash__ is None else device


def by_name(arrays: tuple[Any, ...]) -> tuple[Any, ...]:
    """What a key knows of arrays whose devices have no hash: these by their names, and the one that computes.

    Empty where the library is not known to compute on a current device, and where one is no array, which is refused later, in
    words. None stands for no array.
    """
    backend = by_type.now.get(type(arrays[0]))
    if backend is None or backend.record.current_device is None:
        return ()
    try:
        known = [None if x is None else (type(x), x.shape, x.dtype, str(device_of(x))) for x in arrays]
    except AttributeError:
        return ()
    return (features_of(arrays), str(backend.record.current_device()), *known)


def is_hashable(key: Any) -> bool:
    """Whether no part of a key is an array, or another thing that may change."""
    try:
        hash(key)
    except TypeError:
        return False
    return True


def features_of(arrays: tuple[Any, ...]) -> frozenset[str]:
    """What the arrays and their library ask of a kernel, whatever the call; None stands for no array."""
    backend = by_type.now.get(type(arrays[0]))
    return _NO_FEATURES if backend is None or backend.features is None else backend.features(arrays)


_NO_FEATURES: frozenset[str] = frozenset()


def empty(backend: LoadedBackend, shape: tuple[int, ...], like: Array) -> Array:
    """Zeros like another array that take the room of one."""
    return blank(backend, shape, like.dtype, device_of(like))


def blank(backend: LoadedBackend, shape: tuple[int, ...], dtype: Any, device: Any) -> Array:
    """Zeros of a shape that take the room of one."""
    return backend.xp.broadcast_to(backend.xp.zeros((), dtype=dtype, device=device), shape)
