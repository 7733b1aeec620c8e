"""Attention with a rule for its gradients: as a node of the tape, or inside a library's own differentiation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

from ..algebra.arrays import Array
from ..algebra.state import AttentionState
from ..autodiff.recorded import Recorded, plain_value
from ..autodiff.tape import Node
from ..dispatch.selection import backend_of
from .tree import arrays_in

Arrays: TypeAlias = Mapping[str, Array | None]
Pullback: TypeAlias = Callable[[Arrays, AttentionState, AttentionState], Mapping[str, Array | None]]
"""Function of the arrays, the state, and the gradients of the state, which may be None; returns those of the arrays."""


def recorded_state(
    active: Mapping[str, Any],
    state: AttentionState,
    pull: Callable[[AttentionState], Arrays],
    used: Iterable[Any],
    *,
    fresh: bool = False,
) -> AttentionState:
    """Return a state as a result that depends on recorded arrays; its lse may be None. The rest is as in ``record``."""
    first = next(iter(active.values()))
    space, tape = first.space, first.node.tape
    tape.use(x for x in used if not isinstance(x, Recorded))

    def in_order(d: AttentionState) -> list[Array | None]:
        by_name = pull(d)
        return [by_name[name] for name in active]

    node = Node(tape, [x.node for x in active.values()], in_order, fresh=fresh)
    out = space.record(state.out, [node], lambda d: [AttentionState(d, None)])  # type: ignore[arg-type]
    lse: Any = None if state.lse is None else space.record(state.lse, [node], lambda d: [AttentionState(None, d)])  # type: ignore
    return AttentionState(out, lse)


class Differentiable:
    """A call of attention, whose gradients ``pullback`` computes if they are recorded.

    Raises TypeError if gradients are recorded and ``pullback`` is None, if those of an array in ``options`` are, which have no
    rule, and for transforms that the rule does not serve.
    """

    def __init__(self, name: str, arrays: Arrays, pullback: Pullback | None, options: Mapping[str, Any]) -> None:
        self.arrays, self.rule, self.options = arrays, pullback, options
        self.present = {key: x for key, x in arrays.items() if x is not None}
        self.active = {key: x for key, x in self.present.items() if isinstance(x, Recorded)}
        self.plain: Arrays = {key: None if x is None else plain_value(x) for key, x in arrays.items()}
        """The arrays, without the record of their gradients on the tape."""
        backend = backend_of({key: x for key, x in self.plain.items() if x is not None})
        transforms = {"gradient", "forward_gradient", "vmap"}
        features = backend.features(list(self.plain.values())) & transforms
        for option, value in options.items():
            option_arrays = list(arrays_in(value))
            if any(isinstance(x, Recorded) for x in option_arrays) or (
                option_arrays and backend.features(option_arrays) & transforms
            ):
                raise TypeError(f"{name} has no rule for gradients of {option}: pass an array whose gradient is not recorded")
        self.custom = backend.record.custom_vjp
        self.is_recorded = bool(self.active or features)
        if self.is_recorded and (pullback is None or (features and (self.custom is None or features != {"gradient"}))):
            what = " and ".join(sorted(features - {"gradient"})) if pullback is not None else "gradients"
            raise TypeError(f"{name} has no rule for {what or 'gradients on this backend'}: call it where none are recorded")

    def __call__(self, forward: Callable[[Arrays], AttentionState]) -> AttentionState:
        """Return ``forward(arrays)``, with its gradients if they are recorded."""
        arrays, present, active, plain = self.arrays, self.present, self.active, self.plain
        if not self.is_recorded:
            return forward(plain)
        assert self.rule is not None
        rule = self.rule
        if active:
            state = forward(plain)
            return recorded_state(active, state, lambda d: rule(plain, state, d), arrays_in((present, dict(self.options))))

        def named(values: Any) -> Arrays:
            return {**arrays, **dict(zip(present, values, strict=True))}

        def pull(values: Any, results: Any, d: Any) -> list[Array | None]:
            by_name = rule(named(values), AttentionState(*results), AttentionState(*d))
            return [by_name.get(key) for key in present]

        assert self.custom is not None
        return AttentionState(*self.custom(list(present.values()), lambda values: tuple(forward(named(values))), pull))
