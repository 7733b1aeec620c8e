"""A call of attention over ranks, with its gradients, and its rehearsal for ``explain``, which sends nothing."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar, cast

from ..algebra.arrays import Array, device_of
from ..algebra.state import AttentionState
from ..dispatch.context import dry, watcher
from ..dispatch.kernels import Decision, describe
from ..dispatch.selection import backend_of
from ..ops.differentiable import Arrays, Differentiable
from ..ops.operation import PendingCall
from ..ops.options import given_options
from .agreement import GatheredErrors, agree, check_same
from .engine import Engine, Shape, engine_of
from .layout import Layout
from .sequences import Sequences, facts_of, is_described

T = TypeVar("T")


class Rehearsal:
    """An engine whose ranks still agree by texts, but that sends no arrays and counts their bytes."""

    def __init__(self, engine: Engine) -> None:
        self.engine, self.rank, self.size = engine, engine.rank, engine.size
        self.all_gather_text = engine.all_gather_text
        self.rank_range = getattr(engine, "rank_range", None)
        self.sent = 0

    def shift(self, arrays: Sequence[Array], like: Sequence[tuple[Shape, Array]]) -> Callable[[], list[Array]]:
        self.sent += sum(map(_bytes, arrays))
        return lambda: [_placeholder(shape, x) for shape, x in like]

    def all_gather(self, array: Array, shapes: Sequence[Shape]) -> list[Array]:
        self.sent += (self.size - 1) * _bytes(array)
        return [_placeholder(shape, array) for shape in shapes]

    def all_to_all(self, arrays: Sequence[Array], shapes: Sequence[Shape]) -> list[Array]:
        self.sent += sum(_bytes(x) for rank, x in enumerate(arrays) if rank != self.rank)
        return [_placeholder(shape, arrays[0]) for shape in shapes]


def attention_over_ranks(
    name: str,
    group: Any,
    layouts: tuple[Layout | None, Layout],
    arrays: tuple[Array, Array, Array],
    options: Mapping[str, Any],
    attend: Callable[[Sequences, GatheredErrors], AttentionState | None],
    gradients: Callable[[Sequences, GatheredErrors, AttentionState, AttentionState], Arrays | None] | None = None,
) -> AttentionState:
    """Return ``attend`` of a problem whose queries and keys have these layouts; that of the queries may be None.

    ``gradients``, of the problem, the state and its gradients, returns those of the arrays if they are recorded. Both end
    without a result on a rank that failed: whatever happens on one rank before the first exchange, or between the first and
    the last, all raise. ``explain`` sees both, with an engine that sends nothing.
    """
    engine, (query, key, value) = engine_of(group), arrays
    inputs = {"query": query, "key": key, "value": value, "sink": options.get("sink")}
    options = {option: value for option, value in options.items() if option != "sink"}
    problem: Sequences

    def run(name: str, plain: Arrays, compute: Callable[[GatheredErrors], T | None]) -> T:
        def on_engine(engine: Engine) -> T:
            errors = GatheredErrors(engine)
            result = compute(errors)
            errors.gather()
            return cast(T, result)

        return _explained(name, engine, plain, options, on_engine)

    def forward(plain: Arrays) -> AttentionState:
        def compute(errors: GatheredErrors) -> AttentionState | None:
            nonlocal problem
            prepared = partial(Sequences, errors.engine, plain, layouts, given, lengths)
            if are_described:
                problem = errors.call_again(prepared)
            else:  # options that ranks cannot compare may raise, or hide keys, on some of them only
                problem = cast(Sequences, errors.call(prepared))
                reach = errors.gather(errors.call(lambda: problem.reach))
                check_same([{"the reach of the ranks' keys": each} for each in reach])
            return attend(problem, errors)

        return run(name, plain, compute)

    def pullback(plain: Arrays, state: AttentionState, d: AttentionState) -> Arrays:
        def compute(errors: GatheredErrors) -> Arrays | None:
            assert gradients is not None
            problem.engine = errors.engine
            return gradients(problem, errors, state, d)

        return run(f"{name}_vjp", plain, compute)

    call: Differentiable
    given: dict[str, Any]
    are_described: bool

    def facts() -> tuple[dict[str, Any], dict[str, int]]:
        nonlocal call, given, are_described
        given = given_options(options)
        are_described = all(map(is_described, given.values()))
        call = Differentiable(name, inputs, None if gradients is None else pullback, given)
        shared, lengths = facts_of(call.plain, layouts[1], given)
        return shared | ({"gradients": "recorded"} if call.is_recorded else {}), lengths

    lengths = agree(engine, facts)
    return call(forward)


def _explained(
    name: str, engine: Engine, arrays: Mapping[str, Any], options: Mapping[str, Any], compute: Callable[[Engine], T]
) -> T:
    """Return ``compute(engine)``; for ``explain``, the result of its watcher for an engine that sends nothing."""
    watch = watcher.get()
    if watch is None or not dry.get():
        return compute(engine)
    rehearsal, present = Rehearsal(engine), {key: x for key, x in arrays.items() if x is not None}
    algebra = partial(compute, rehearsal)
    run = PendingCall(
        backend=backend_of(present),
        call=describe(name, present, features=frozenset(given_options(options)), options={}),
        decision=Decision(None),
        arguments=present,
        options=options,
        compute=algebra,
        algebra=algebra,
        empty=algebra,
        is_composite=True,
        sent=lambda: rehearsal.sent,
    )
    result: T = watch(run)
    return result


def _bytes(x: Array) -> int:
    return math.prod(x.shape) * backend_of({"x": x}).xp.finfo(x.dtype).bits // 8


def _placeholder(shape: Shape, like: Array) -> Array:
    return backend_of({"x": like}).placeholder(tuple(shape), like.dtype, device_of(like))
