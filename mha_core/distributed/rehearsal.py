"""A call of attention over ranks, with its gradients, and its rehearsal for ``explain``, which sends nothing."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from ..algebra.arrays import Array, device_of
from ..algebra.state import AttentionState
from ..dispatch.context import dry, watcher
from ..dispatch.kernels import Decision, describe
from ..dispatch.selection import backend_of
from ..ops.differentiable import Arrays, differentiable
from ..ops.operation import PendingCall
from ..ops.options import given_options
from .engine import Engine, Shape, engine_of

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
    arrays: tuple[Array, Array, Array],
    options: Mapping[str, Any],
    attend: Callable[[Arrays, Mapping[str, Any], Engine], AttentionState],
    gradients: Callable[[AttentionState, AttentionState, Engine], Arrays] | None = None,
) -> AttentionState:
    """Return ``attend`` of query, key, value and sink, the other options, and the engine of a group.

    ``gradients``, of the state, its gradients and the engine, returns those of the arrays if they are recorded. ``explain``
    sees both, with an engine that sends nothing.
    """
    engine, (query, key, value) = engine_of(group), arrays
    inputs = {"query": query, "key": key, "value": value, "sink": options.get("sink")}
    options = {option: value for option, value in options.items() if option != "sink"}

    def forward(plain: Arrays) -> AttentionState:
        return _explained(name, engine, plain, options, partial(attend, plain, options))

    def pullback(plain: Arrays, state: AttentionState, d: AttentionState) -> Arrays:
        assert gradients is not None
        return _explained(f"{name}_vjp", engine, plain, options, partial(gradients, state, d))

    return differentiable(name, inputs, forward, None if gradients is None else pullback, options)


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
