"""Public operations: a call computes its key, looks up or makes the plan with this key, and runs the plan.

A key contains everything that the checks and the choice of a kernel depend on: types, shapes, dtypes and devices, options, what
the caller demands, whether a gradient is recorded, and the generation of the registry. The elements of arrays are never read. A
plan that was made once therefore serves every call with the same key, at the cost of one lookup.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from ..algebra.grid import Term
from ..dispatch import registry
from ..dispatch.backend import LoadedBackend
from ..dispatch.context import demands, watcher
from ..dispatch.contract import Call
from ..dispatch.kernels import Decision
from ..dispatch.selection import find_backend, loads_backend

Key = tuple[Hashable, ...] | None
"""The key of a call; None if the call is planned each time, for example because an option contains arrays, whose values may
differ in the next call."""


@dataclass(frozen=True)
class PendingCall:
    """A call about to be computed, as ``explain`` and ``verify`` receive it."""

    backend: LoadedBackend
    call: Call
    decision: Decision
    arguments: Mapping[str, Any]
    """The arrays by name."""
    options: Mapping[str, Any]
    compute: Callable[[], Any]
    """Computes the caller's result with the chosen kernel, or with the algebra if none was chosen."""
    algebra: Callable[[], Any]
    """Computes it with the algebra."""
    empty: Callable[[], Any]
    """Returns a placeholder with the shape and dtype of the result, without computing it."""
    again: Callable[[Callable[[Any], Any]], Any] | None = None
    """Computes with the algebra after applying a function to every array; None if rounding has a bound of its own."""
    is_composite: bool = False
    """True if the operation is made of smaller ones."""
    sent: Callable[[], int] | None = None
    """Returns the bytes that this process sent to others, once the smaller operations were called."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The decision for all calls with one key: two functions of the arguments of a call (``Operation.plans_hold_options``)."""

    compute: Callable[..., Any]
    """Returns the result."""
    bind: Callable[..., PendingCall] | None
    """Returns the ``PendingCall`` that a watcher receives. None: operations inside have theirs."""


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


class Step:
    """A public function that passes through ``__call__``, so that the compiler of an array library may record it whole.

    ``Backend.record_calls`` receives ``__call__`` of this class and its subclass.
    """

    every: ClassVar[list[Step]] = []
    """All steps, each at its ``number``."""
    at = 0
    """The index of an argument that is an array."""

    def __init__(self, run: Callable[..., Any]) -> None:
        self.run, self.number = run, len(Step.every)
        Step.every.append(self)

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        if type(arguments[self.at]).__module__ not in registry.known_modules and loads_backend(arguments[self.at]):
            return self(*arguments, **options)  # as recorded by the compiler of the library that is loaded now
        return self.run(*arguments, **options)


class Operation(Step):
    """A step that kernels may compute.

    Parameters
    ----------
    key : function of the arguments, a tuple, and the options, a mapping
        Returns the ``Key`` of the call. It checks nothing: if an argument cannot be part of a key, it returns None.
    plan : function of the arguments, the options, and whether the plan will be kept
        Checks the call, chooses a kernel, and returns the ``Plan``. A plan that will be kept must not refer to any array, but
        for those of an option that keeps it.
    at : the index of an argument that is an array
    plans_hold_options : whether a plan holds the options, and its functions receive the other arguments only
    """

    def __init__(
        self,
        key: Callable[[tuple[Any, ...], Mapping[str, Any]], Key],
        plan: Callable[[tuple[Any, ...], Mapping[str, Any], bool], Plan],
        at: int = 0,
        *,
        plans_hold_options: bool = False,
    ) -> None:
        super().__init__(self.__call__)
        self.key, self.plan, self.at, self.plans_hold_options = key, plan, at, plans_hold_options

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        if type(arguments[self.at]).__module__ not in registry.known_modules and loads_backend(arguments[self.at]):
            return self(*arguments, **options)
        key = self.key(arguments, options)
        try:
            plan = plans.get(key)
        except TypeError:  # a device or a symbolic size that is not hashable
            key = plan = None
        if plan is None:
            plan = self._planned(key, arguments, options)
        if self.plans_hold_options:
            options = {}
        watch = watcher.get()
        if watch is None or plan.bind is None:
            return plan.compute(*arguments, **options)
        return watch(plan.bind(*arguments, **options))

    def _planned(self, key: Key, arguments: tuple[Any, ...], options: Mapping[str, Any]) -> Plan:
        """Return a plan that no earlier call left in ``plans``, or one that an option keeps."""
        owners = [x.memo for x in options.values() if isinstance(x, Term) and x.key is None and x.memo is not None]
        store: PlanStore = owners[0].setdefault("plans", PlanStore()) if owners else plans
        key = None if len(owners) > 1 else key  # the key names neither
        plan: Plan | None = store.get(key)
        if plan is None:
            plan = self.plan(arguments, options, key is not None)
            if key is not None:
                store.keep(key, plan)
        return plan


registry.calls += [Step.__call__, Operation.__call__]


def key_of(head: Hashable, arrays: tuple[Any, ...], options: Mapping[str, Any]) -> Key:
    """Return a key: ``head``, what the caller demands, the state of the library, and a description of arrays and options.

    An array that was not given is None. Returns None if an argument is not an array, or is of another library (``plan`` then
    raises the error), or has no device; and if an option contains arrays, or is of an unknown type. A plan for an option that
    keeps something beside it is kept there too, so that it may refer to the option, and its key does not name it.
    """
    backend = registry.by_type.get(type(arrays[0])) or find_backend(arrays[0])
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
        elif type(value) is frozenset:
            key = (key, name, value)
        elif isinstance(value, Term) and value.key is not None:
            key = (key, name, value.key)
        elif isinstance(value, Term) and value.memo is not None:
            key = (key, name, Term)
        else:
            return None
    return key


_PLAIN = frozenset({int, float, bool, str, type(None)})
