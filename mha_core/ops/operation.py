"""How every public operation is called: a key, a plan found or made under it, and the plan run.

A key holds all that checks and choice depend on: types, shapes, dtypes and devices, options, what the caller demands, whether a
gradient is recorded, and the generation of the registry. No number in an array is ever looked at. So a plan that was made once
serves every call with the same key, and such a call costs one lookup.
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
from ..dispatch.context import demands, dry_run, watched_by, watcher
from ..dispatch.contract import Call
from ..dispatch.kernels import Decision, decide, describe
from ..dispatch.selection import agreed, known_backend
from .tree import arrays_in, map_arrays

Key = tuple[Hashable, ...] | None
"""None stands for a call that is planned each time, since an option holds arrays, which may be others in the next call."""


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
    """Computes with the kernel that was chosen."""
    algebra: Callable[[], Any]
    """Computes with the algebra."""
    empty: Callable[[], Any]
    """Returns a result of the right shape and dtype at no cost."""
    again: Callable[[Callable[[Any], Any]], Any] | None = None
    """For an operation made of smaller ones: computes with the algebra after applying a function to every array."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What was decided for all calls with one key."""

    compute: Callable[..., Any]
    """Called as the operation is, ``compute(*arguments, **options)``."""
    bind: Callable[..., Run]
    """Called likewise; returns the call as a ``Run``, for a watcher."""
    finish: Callable[[Any], Any] | None = None
    """What ``compute`` does at the end, and is left to do with a watcher's result: an axis taken away that a run has."""


class PlanStore:
    """Plans by key. When they, or the numbers in their keys, have become too many, all are forgotten.

    The bounds hold memory at some 4 MB each. Shapes may go on changing for ever, and packed sequences put a thousand lengths
    into a key that may never come again.
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


class Operation:
    """A public operation.

    Parameters
    ----------
    key : function of the arguments, a tuple, and the options, a mapping
        Returns the ``Key`` of the call. It checks nothing: what cannot be part of a key has none, and is checked by ``plan``.
    plan : function of the same, and of whether the plan will be kept
        Checks the call, chooses a kernel, and returns the ``Plan``. A plan that is kept holds no array.
    """

    def __init__(
        self,
        key: Callable[[tuple[Any, ...], Mapping[str, Any]], Key],
        plan: Callable[[tuple[Any, ...], Mapping[str, Any], bool], Plan],
    ) -> None:
        self.key, self.plan = key, plan

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        key = self.key(arguments, options)
        try:
            plan = plans.get(key)
        except TypeError:  # a device or a symbolic size without a hash
            key = plan = None
        if plan is None:
            plan = self.plan(arguments, options, key is not None)
            if key is not None:
                plans.keep(key, plan)
        watch = watcher.get()
        if watch is None:
            return plan.compute(*arguments, **options)
        result = watch(plan.bind(*arguments, **options))
        return result if plan.finish is None else plan.finish(result)


@dataclass(frozen=True, slots=True)
class Examined:
    """What an operation says of a call whose arguments it has checked."""

    backend: LoadedBackend
    algebra: Callable[..., Any]
    """Called as the operation is."""
    shape: tuple[int, ...]
    """The shape of the result."""
    features: Iterable[str] = ()
    settings: Iterable[tuple[str, Any]] = ()
    """Options that kernels are chosen by."""


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

    def key(arrays: tuple[Any, ...], options: Mapping[str, Any]) -> Key:
        known = signature(arrays)
        return None if known is None else (name, *options.values(), *known)

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
                lambda y: xp.reshape(y, ()),
            )
        result = shape(*arrays) if shape else tuple(first.shape)
        told = Examined(backend, partial(algebra, xp), result, settings=options.items())
        return _planned(name, named, told, arrays, options)

    return Operation(key, plan)


def composite(
    name: str,
    named: Callable[..., Mapping[str, Any]],
    examine: Callable[..., Examined],
    *,
    facts: Callable[..., tuple[Hashable, ...]] = lambda *arguments: (),
) -> Operation:
    """Return an operation made of smaller ones; the functions below are called as it is.

    Parameters
    ----------
    name : as in ``Call.op``
    named : returns the arrays by which kernels are chosen, by name
    examine : checks the arguments
    facts : called with the arguments alone; returns what a key holds besides arrays and options
    """

    def key(arguments: tuple[Any, ...], options: Mapping[str, Any]) -> Key:
        arrays = named(*arguments, **options)
        known, said = signature(tuple(arrays.values())), option_keys({k: v for k, v in options.items() if k not in arrays})
        return None if known is None or said is None else (name, facts(*arguments), said, *known)

    def plan(arguments: tuple[Any, ...], options: Mapping[str, Any], kept: bool) -> Plan:
        return _planned(name, named, examine(*arguments, **options), arguments, options, composite=True)

    return Operation(key, plan)


def _planned(
    name: str,
    named: Callable[..., Mapping[str, Any]],
    told: Examined,
    arguments: tuple[Any, ...],
    options: Mapping[str, Any],
    *,
    composite: bool = False,
) -> Plan:
    """Choose a kernel. Before one computes a composite operation, the smaller ones check their arguments only."""
    backend, algebra, shape = told.backend, told.algebra, told.shape
    given = named(*arguments, **options)
    features = backend.features((*given.values(), *arrays_in(options)))
    call = describe(name, given, features=features.union(told.features), options=dict(told.settings))
    decision = decide(backend.name, call, parts=composite)
    if composite and decision.kernel is not None:
        with watched_by(_check_only), dry_run():
            algebra(*arguments, **options)
    compute = decision.run or algebra

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


def signature(arrays: tuple[Any, ...]) -> Key:
    """Return what arrays, their library and the caller's demands add to a key; None stands for no array.

    None for arguments that are not arrays, or are of several libraries: ``plan`` raises the error.
    """
    backend = known_backend(arrays[0])
    if backend is None:
        return None
    device = backend.record.device_key
    try:
        if device is None:
            known = [None if x is None else (type(x), x.shape, x.dtype, x.device) for x in arrays]
        else:
            known = [None if x is None else (type(x), x.shape, x.dtype, device(x.device)) for x in arrays]
        return (registry.generation(), demands.get(), backend.features(arrays), *known)
    except AttributeError:  # not an array, an array of another library, or a tracer without a device
        return None


def option_keys(options: Mapping[str, Any]) -> Key:
    """Return what options add to a key; None if one holds arrays, or is not a mask, a bias, a number or a string."""
    values: list[Hashable] = []
    for name, value in options.items():
        if value is None or type(value) in (int, float, bool, str):
            values.append((name, type(value), value))  # the type too: True == 1
        elif isinstance(value, Term) and value.key is not None:
            values.append((name, value.key))
        else:
            return None
    return tuple(values)
