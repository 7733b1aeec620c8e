"""The factory of operations made of smaller ones, and their gradients by kernels that compute them as a whole."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

from ..algebra.arrays import Array, device_of
from ..algebra.int8 import Int8Weight, arrays_of
from ..autodiff.recorded import Recorded, plain_value
from ..autodiff.tape import Tape, gradients
from ..dispatch.context import watcher
from ..dispatch.kernels import decide, describe
from ..dispatch.selection import find_backend
from .elementary import Examined, check_smaller_operations, empty, planned, unnamed
from .operation import Key, Operation, PendingCall, Plan, key_of
from .tree import arrays_in, map_arrays

Named: TypeAlias = Callable[..., Mapping[str, Any]]
Arguments: TypeAlias = tuple[Any, ...]
Options: TypeAlias = Mapping[str, Any]


def composite(
    name: str,
    named: Named,
    examine: Callable[..., Examined],
    *,
    facts: Callable[..., tuple[Any, ...]] = lambda *arguments: (),
    at: int = 0,
    smaller_operations: bool = True,
    planned_by_options: bool = True,
) -> Operation:
    """Return an operation made of smaller ones; the functions below are called with its arguments.

    Its gradients are those of the smaller operations, unless a kernel of ``name_vjp`` computes them as a whole.

    Parameters
    ----------
    name : as in ``Call.op``
    named : returns, by name, the arrays and int8 weights that the choice of a kernel depends on
    examine : checks the arguments
    facts : called without the options; returns what a key contains besides arrays and options
    at : as in ``Operation``
    smaller_operations : False for an operation that is not made of smaller ones, but has arguments that are not all of one kind
    planned_by_options : False if options are numbers that differ in every call, and no choice depends on them
    """

    def key(arguments: tuple[Any, ...], options: Mapping[str, Any]) -> Key:
        operands = named(*arguments, **options)
        in_key = {k: v for k, v in options.items() if k not in operands} if planned_by_options else {}
        arrays = arrays_of(operands)
        return key_of((name, facts(*arguments), *arrays), tuple(arrays.values()), in_key)

    def arrays_named(*arguments: Any, **options: Any) -> Mapping[str, Any]:
        return arrays_of(named(*arguments, **options))

    def plan(arguments: tuple[Any, ...], options: Mapping[str, Any], kept: bool) -> Plan:
        examined = examine(*arguments, **options)
        if smaller_operations and Int8Weight in map(type, named(*arguments, **options).values()):
            examined = replace(examined, features=(*examined.features, "int8"))
        if smaller_operations and examined.backend.plain is not None:
            plain = map_arrays((arguments, dict(options)), plain_value)
            whole = _Whole(f"{name}_vjp", arrays_named, examined, examine(*plain[0], **plain[1]))
            return whole.plan(arguments, options, *plain)
        return planned(name, arrays_named, examined, arguments, options, composite=smaller_operations)

    return Operation(key, plan, at)


class _Whole:
    """An operation on recorded arrays as one node of the tape, if a kernel computes the result and the pullback as a whole.

    Such a kernel receives the arguments, and ``wanted=``, the names of arrays. Its pullback returns their gradients by name.
    """

    def __init__(self, op: str, named: Named, recorded: Examined, plain: Examined) -> None:
        self.op, self.named, self.recorded, self.plain = op, named, recorded, plain

    def plan(self, arguments: Arguments, options: Options, plain: Arguments, plain_options: Options) -> Plan:
        """Return the plan of a call: with a kernel, or with the smaller operations on recorded arrays."""
        active = self._active(arguments, options)
        self.wanted, backend = frozenset(active), self.plain.backend
        arrays = self.named(*plain, **plain_options)
        option_arrays = (x for x in arrays_in(plain_options) if find_backend(x) is backend)
        features, self.shield = backend.shielded(backend.features((*arrays.values(), *option_arrays)))
        features = features.union(self.plain.features, unnamed(active, (arguments, options)))
        settings = dict(self.plain.settings)
        self.smooth = not any(str(x).rpartition("=")[2] == "relu" for x in (*features, *settings.values()))
        self.call = describe(self.op, arrays, features=features, options={**settings, "wanted": self.wanted})
        self.decision = decide(backend.name, self.call, composite=True)
        if self.decision.run is None:
            return Plan(self.recorded.algebra, self._bind)
        check_smaller_operations(self.shield(self.plain.algebra), plain, plain_options)
        return Plan(partial(self._compute, self.shield(self.decision.run)), None)

    def _active(self, arguments: Arguments, options: Options) -> dict[str, Recorded]:
        return {name: x for name, x in self.named(*arguments, **options).items() if isinstance(x, Recorded)}

    def _bind(self, *arguments: Any, **options: Any) -> PendingCall:
        by_smaller_operations = partial(self.recorded.algebra, *arguments, **options)
        return self._pending(arguments, options, compute=by_smaller_operations, algebra=by_smaller_operations)

    def _compute(self, kernel: Callable[..., Any], *arguments: Any, **options: Any) -> Recorded:
        active = self._active(arguments, options)
        plain, plain_options = map_arrays((arguments, options), plain_value)
        algebra = self.shield(self.plain.algebra)
        pullbacks: list[Callable[[Array], Mapping[str, Array]]] = []

        def forward() -> Array:
            out, pullback = kernel(*plain, wanted=self.wanted, **plain_options)
            pullbacks.append(self.shield(pullback))
            return out

        def again(function: Callable[[Any], Any]) -> Any:
            return algebra(*map_arrays(plain, function), **map_arrays(plain_options, function))

        references = {"algebra": partial(algebra, *plain, **plain_options), "again": again}
        out = _watched(self._pending(plain, plain_options, compute=forward, **references), forward)

        def pull(d: Array) -> tuple[Array, ...]:
            def backward() -> tuple[Array, ...]:
                by_name = pullbacks[0](d)
                return tuple(by_name[name] for name in active)

            def by_smaller_operations(function: Callable[[Any], Any] = lambda x: x) -> tuple[Array, ...]:
                return self._gradients(active, arguments, options, d, function)

            if not pullbacks:  # explained, not computed
                return tuple(self.plain.backend.placeholder(x.shape, x.dtype, device_of(x.value)) for x in active.values())
            if not self.smooth:
                return backward()  # rounding may decide on which side of a jump a slope is, so there is nothing to compare
            pending = self._pending(
                plain, plain_options, compute=backward, algebra=by_smaller_operations, again=by_smaller_operations
            )
            return _watched(pending, backward)

        space = self.recorded.backend.xp
        return space.record(out, [x.node for x in active.values()], pull, arrays_in((arguments, options)), fresh=True)

    def _gradients(
        self, active: Mapping[str, Recorded], arguments: Arguments, options: Options, d: Array, function: Callable[[Any], Any]
    ) -> tuple[Array, ...]:
        """Return the gradients of the active arrays by the smaller operations, after applying a function to every array."""
        space, tape, leaves = self.recorded.backend.xp, Tape(), dict[int, Recorded]()

        def leaf(x: Any) -> Any:
            if not isinstance(x, Recorded):
                return function(x)
            if id(x) not in leaves:
                leaves[id(x)] = space.leaf(tape, function(x.value))
            return leaves[id(x)]

        inputs, input_options = map_arrays((arguments, options), leaf)
        out = self.recorded.algebra(*inputs, **input_options)
        by_node = gradients(self.plain.backend.xp, {out.node: function(d)})
        return tuple(by_node[leaves[id(x)].node] for x in active.values())

    def _pending(self, arguments: Arguments, options: Options, **functions: Any) -> PendingCall:
        arrays = self.named(*arguments, **options)
        return PendingCall(
            backend=self.plain.backend,
            call=self.call,
            decision=self.decision,
            arguments=arrays,
            options=options,
            empty=partial(empty, self.plain.backend, self.plain, self.call, arrays),
            is_composite=True,
            **functions,
        )


def _watched(pending: PendingCall, compute: Callable[[], Any]) -> Any:
    """Return what the watcher makes of a run; without one, what ``compute`` returns."""
    watch = watcher.get()
    return compute() if watch is None else watch(pending)
