"""What ``explain`` says of attention over ranks: the blocks of a rank, and the bytes that it would send. Nothing is sent."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from ..algebra.arrays import Array, device_of
from ..dispatch.context import dry, watcher
from ..dispatch.kernels import Decision, describe
from ..dispatch.selection import backend_of
from ..ops.operation import Run
from ..ops.options import given_options
from .engine import Engine, Shape

T = TypeVar("T")


class Rehearsal:
    """An engine whose ranks still agree by texts, but that sends no arrays: it counts their bytes."""

    def __init__(self, engine: Engine) -> None:
        self.engine, self.rank, self.size = engine, engine.rank, engine.size
        self.tell = engine.tell
        self.own = getattr(engine, "own", None)
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


def explained(
    name: str, engine: Engine, arrays: Mapping[str, Any], options: Mapping[str, Any], compute: Callable[[Engine], T]
) -> T:
    """Return ``compute(engine)``; for ``explain``, what it makes of it with an engine that sends nothing."""
    watch = watcher.get()
    if watch is None or not dry.get():
        return compute(engine)
    rehearsal, given = Rehearsal(engine), {key: x for key, x in arrays.items() if x is not None}
    algebra = partial(compute, rehearsal)
    run = Run(
        backend=backend_of(given),
        call=describe(name, given, features=frozenset(given_options(options)), options={}),
        decision=Decision(None),
        arguments=given,
        options=options,
        compute=algebra,
        algebra=algebra,
        empty=algebra,
        parts=True,
        sent=lambda: rehearsal.sent,
    )
    found: T = watch(run)
    return found


def _bytes(x: Array) -> int:
    return math.prod(x.shape) * backend_of({"x": x}).xp.finfo(x.dtype).bits // 8


def _placeholder(shape: Shape, like: Array) -> Array:
    return backend_of({"x": like}).placeholder(tuple(shape), like.dtype, device_of(like))
