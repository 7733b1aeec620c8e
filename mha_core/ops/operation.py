"""Public operations: a call computes its key, looks up or makes the plan with this key, and runs the plan.

A key contains everything that the checks and the choice of a kernel depend on: types, shapes, dtypes and devices, options, what
the caller demands, whether a gradient is recorded, and the generation of the registry. The elements of arrays are never read. A
plan that was made once therefore serves every call with the same key, at the cost of one lookup.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from ..algebra.arrays import Array, device_of
from ..algebra.grid import Term
from ..dispatch import registry
from ..dispatch.backend import LoadedBackend
from ..dispatch.context import demands, dry_run, watcher
from ..dispatch.contract import Call
from ..dispatch.kernels import Decision, decide, describe
from ..dispatch.selection import agreed, known_backend
from ..dispatch.step import Step, met
from .tree import arrays_in, map_arrays

Key = tuple[Hashable, ...] | None
"""The key of a call; None if the call is planned each time, for example because an option contains arrays, whose values may
differ in the next call."""


@dataclass(frozen=True)
class Run:
    """A call about to be computed, as ``explain`` and ``verify`` receive it."""

    backend: LoadedBackend
    call: Call
    decision: Decision
    arguments: Mapping[str, Any]
    """The arrays by name."""
    options: Mapping[str, Any]
    compute: Callable[[], Any]
    """Computes with the chosen kernel, or with the algebra if none was chosen."""
    algebra: Callable[[], Any]
    """Computes with the algebra."""
    empty: Callable[[], Any]
    """Returns a placeholder with the shape and dtype of the result, without computing it."""
    again: Callable[[Callable[[Any], Any]], Any] | None = None
    """Computes with the algebra after applying a function to every array; None unless the operation is made of smaller ones."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What was decided for all calls with one key."""

    compute: Callable[..., Any]
    """Called with the arguments of the operation, ``compute(*arguments, **options)``; returns its result."""
    bind: Callable[..., Run]
    """Called with the same arguments; returns the ``Run`` that a watcher receives."""
    has_options: bool = False
    """Whether ``compute`` has the options already, and is called with the other arguments only."""
    finish: Callable[[Any], Any] | None = None
    """Removes an axis that was added for the ``Run``. ``compute`` does this by itself; a watcher's result still needs it."""


class PlanStore:
    """Plans by key. All are dropped when there are too many of them, or too many numbers in their keys.

    Each bound limits memory to about 4 MB. Shapes may change with every call, and packed sequences put a thousand lengths into
    a key that may never recur.
    """

    MOST_PLANS = 4096
    MOST_NUMBERS = 2**17

    def __init__(self) -> None:
        self._plans: dict[Key, Plan] = {}
        self._numbers = 0
        self.get = self._plans.get

    def keep(self, key: Key, plan: Plan) -> None:
        numbers = _length(key)
        if len(self._plans) >= self.MOST_PLANS or self._numbers + numbers > self.MOST_NUMBERS:
            self._plans.clear()
            self._numbers = 0
        self._numbers += numbers
        self._plans[key] = plan


def _length(key: Any) -> int:
    return len(key) + sum(_length(part) for part in key if isinstance(part, tuple))


plans = PlanStore()


class Operation(Step):
    """A step that kernels may compute.

    Parameters
    ----------
    key : function of the arguments, a tuple, and the options, a mapping
        Returns the ``Key`` of the call. It checks nothing: if an argument cannot be part of a key, it returns None.
    plan : function of the arguments, the options, and whether the plan will be kept
        Checks the call, chooses a kernel, and returns the ``Plan``. A plan that will be kept must not refer to any array.
    at : the index of an argument that is an array
    """

    def __init__(
        self,
        key: Callable[[tuple[Any, ...], Mapping[str, Any]], Key],
        plan: Callable[[tuple[Any, ...], Mapping[str, Any], bool], Plan],
        at: int = 0,
    ) -> None:
        super().__init__(self.__call__)
        self.key, self.plan, self.at = key, plan, at

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        if type(arguments[self.at]).__module__ not in registry.known_modules and met(arguments[self.at]):
            return self(*arguments, **options)
        key = self.key(arguments, options)
        try:
            plan = plans.get(key)
        except TypeError:  # a device or a symbolic size that is not hashable
            key = plan = None
        if plan is None:
            plan = self.plan(arguments, options, key is not None)
            if key is not None:
                plans.keep(key, plan)
        watch = watcher.get()
        if watch is None:
            return plan.compute(*arguments) if plan.has_options else plan.compute(*arguments, **options)
        result = watch(plan.bind(*arguments, **options))
        return result if plan.finish is None else plan.finish(result)


@dataclass(frozen=True, slots=True)
class Examined:
    """A call whose arguments have been checked, and what the choice of a kernel needs to know about it."""

    backend: LoadedBackend
    algebra: Callable[..., Any]
    """Called with the arguments of the operation."""
    shape: tuple[int, ...]
    """The shape of the result."""
    features: Iterable[str] = ()
    settings: Iterable[tuple[str, Any]] = ()
    """Options that the choice of a kernel may depend on."""


def elementary(
    name: str,
    names: tuple[str, ...],
    algebra: Callable[..., Array],
    *,
    optional: Iterable[str] = (),
    validate: Callable[..., None] | None = None,
    shape: Callable[..., tuple[int, ...]] | None = None,
) -> Operation:
    """Return an operation on floating arrays of one library, dtype and device.

    Parameters
    ----------
    name : as in ``Call.op``
    names : the names of the arrays, in order; those in ``optional`` may be None
    algebra : called as ``algebra(xp, *arrays, **options)``; a kernel is called without ``xp``
    validate : function of the arrays that raises for shapes that do not fit
    shape : function of the arrays that returns the shape of the result, by default that of the first array
    """

    def named(*arrays: Any, **options: Any) -> dict[str, Any]:
        return dict(zip(names, arrays, strict=True))

    def plan(arrays: tuple[Any, ...], options: Mapping[str, Any], kept: bool) -> Plan:
        backend = agreed(**{k: x for k, x in named(*arrays).items() if x is not None or k not in optional})
        if validate is not None:
            validate(*arrays)
        xp, first = backend.xp, arrays[0]
        if first.ndim == 0:  # NumPy's functions return a scalar, which is not an array, for an array without axes
            one = plan((xp.reshape(first, (1,)), *arrays[1:]), options, kept)
            return Plan(
                lambda x, *rest, **options: xp.reshape(one.compute(xp.reshape(x, (1,)), *rest, **options), ()),
                lambda x, *rest, **options: one.bind(xp.reshape(x, (1,)), *rest, **options),
                finish=lambda y: xp.reshape(y, ()),
            )
        result = shape(*arrays) if shape else tuple(first.shape)
        examined = Examined(backend, partial(algebra, xp), result, settings=options.items())
        return _planned(name, named, examined, arrays, options)

    return Operation(partial(key_of, name), plan)


def composite(
    name: str,
    named: Callable[..., Mapping[str, Any]],
    examine: Callable[..., Examined],
    *,
    facts: Callable[..., tuple[Any, ...]] = lambda *arguments: (),
    at: int = 0,
) -> Operation:
    """Return an operation made of smaller ones; the functions below are called with its arguments.

    Parameters
    ----------
    name : as in ``Call.op``
    named : returns, by name, the arrays that the choice of a kernel depends on
    examine : checks the arguments
    facts : called without the options; returns what a key contains besides arrays and options
    at : as in ``Operation``
    """

    def key(arguments: tuple[Any, ...], options: Mapping[str, Any]) -> Key:
        arrays = named(*arguments, **options)
        others = {k: v for k, v in options.items() if k not in arrays}
        return key_of((name, facts(*arguments), *arrays), tuple(arrays.values()), others)

    def plan(arguments: tuple[Any, ...], options: Mapping[str, Any], kept: bool) -> Plan:
        return _planned(name, named, examine(*arguments, **options), arguments, options, composite=True)

    return Operation(key, plan, at)


def _planned(
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
    given = named(*arguments, **options)
    ours = (x for x in arrays_in(options) if known_backend(x) is backend)  # an error will name the others
    features, shield = backend.shielded(backend.features((*given.values(), *ours)))
    algebra = shield(examined.algebra)
    call = describe(name, given, features=features.union(examined.features), options=dict(examined.settings))
    decision = decide(backend.name, call, composite=composite)
    if composite and decision.kernel is not None:
        with dry_run(_check_only):
            algebra(*arguments, **options)
    compute = algebra if decision.run is None else shield(decision.run)

    def bind(*arguments: Any, **options: Any) -> Run:
        def again(function: Callable[[Any], Any]) -> Any:
            return algebra(*map_arrays(arguments, function), **map_arrays(options, function))

        arrays = named(*arguments, **options)
        return Run(
            backend=backend,
            call=call,
            decision=decision,
            arguments=arrays,
            options=options,
            compute=partial(compute, *arguments, **options),
            algebra=partial(algebra, *arguments, **options),
            empty=partial(backend.placeholder, shape, call.dtype, device_of(next(iter(arrays.values())))),
            again=again if composite else None,
        )

    return Plan(compute, bind)


def _check_only(run: Run) -> Any:
    return run.empty() if run.again is None else run.algebra()


def key_of(head: Hashable, arrays: tuple[Any, ...], options: Mapping[str, Any]) -> Key:
    """Return a key: ``head``, what the caller demands, the state of the library, and a description of arrays and options.

    An array that was not given is None. Returns None if an argument is not an array, or is of another library (``plan`` then
    raises the error), or has no device; and if an option contains arrays, or is of an unknown type.
    """
    backend = registry.by_type.get(type(arrays[0])) or known_backend(arrays[0])
    if backend is None:
        return None
    record = backend.record
    features, device_key, current_device = record.features, record.device_key, record.current_device
    try:
        key: Any = (head, registry.generation, demands.get(), None if features is None else features(arrays))
        for x in arrays:  # each tuple contains the one before: nothing is copied
            if x is None:
                key = (key, None)
            else:
                key = (key, type(x), x.shape, x.dtype, x.device if device_key is None else device_key(x.device))
        if current_device is not None:
            here = current_device()
            key = (key, here if device_key is None else device_key(here))
    except AttributeError:  # not an array, an array of another library, or a tracer without a device
        return None
    for name in options:
        value = options[name]
        if type(value) in _PLAIN:
            key = (key, name, type(value), value)  # the type too: True == 1
        elif isinstance(value, Term) and value.key is not None:
            key = (key, name, value.key)
        else:
            return None
    return key


_PLAIN = frozenset({int, float, bool, str, type(None)})
