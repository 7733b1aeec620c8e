"""Public operations: a call computes its key, looks up or makes the plan with this key, and runs the plan.

A key contains everything that the checks and the choice of a kernel depend on: types, shapes, dtypes and devices, options, what
the caller demands, whether a gradient is recorded, and the generation of the registry. The elements of arrays are never read. A
plan that was made once therefore serves every call with the same key, at the cost of one lookup.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any

from ..algebra.grid import Term
from ..dispatch import registry
from ..dispatch.backend import LoadedBackend
from ..dispatch.context import demands, watcher
from ..dispatch.contract import Call
from ..dispatch.kernels import Decision
from ..dispatch.selection import known_backend
from ..dispatch.step import Step, met

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
    """Computes with the algebra after applying a function to every array; None if rounding has a bound of its own."""
    parts: bool = False
    """Whether the operation is made of smaller ones."""
    sent: Callable[[], int] | None = None
    """Returns the bytes that this process sent to others, once the smaller operations were called."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What was decided for all calls with one key."""

    compute: Callable[..., Any]
    """Called with the arguments of the operation, ``compute(*arguments, **options)``; returns its result."""
    bind: Callable[..., Run] | None
    """Called with the same arguments; returns the ``Run`` that a watcher receives. None: operations inside have theirs."""
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
        if watch is None or plan.bind is None:
            return plan.compute(*arguments) if plan.has_options else plan.compute(*arguments, **options)
        result = watch(plan.bind(*arguments, **options))
        return result if plan.finish is None else plan.finish(result)


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
        elif type(value) is frozenset:
            key = (key, name, value)
        elif isinstance(value, Term) and value.key is not None:
            key = (key, name, value.key)
        else:
            return None
    return key


_PLAIN = frozenset({int, float, bool, str, type(None)})
