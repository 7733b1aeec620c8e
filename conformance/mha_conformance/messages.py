"""What an engine of communication must send: messages of every dtype, of any size, with any strides, bit for bit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mha_core import MhaError
from mha_core.shared import Engine, LoadedBackend

DTYPES = ("float64", "float32", "float16", "bfloat16", "int64", "int32", "int8", "uint8", "bool")
SIZES = (0, 1, 255, 257, 16385, 65537, 3 * 2**19 + 13)
"""Elements of messages: MPI and others send long ones in another way, or in pieces. The last has 6 MB in int32."""

Sent = np.ndarray[Any, Any]
Shape = tuple[int, ...]


class EngineFault(MhaError, AssertionError):
    """An engine did not do what ``Engine`` promises; the message names each check that failed."""


class Ranks:
    """An engine, and arrays to send: what each rank sends is known to all."""

    def __init__(self, engine: Engine, backend: LoadedBackend) -> None:
        assert engine.rank is not None and engine.size > 1, (
            "judge needs an engine of at least two ranks that know their numbers"
        )
        self.engine, self.backend, self.rank, self.size = engine, backend, engine.rank, engine.size
        self.others = [rank for rank in range(self.size) if rank != self.rank]

    def array(self, shape: Shape, seed: int, dtype: str = "float64") -> Sent:
        """Return numbers of all magnitudes that a dtype has; those of bfloat16 are in float32."""
        r = np.random.default_rng(seed)
        if dtype == "bool":
            return r.random(shape) < 0.5
        if "int" in dtype:
            limits = np.iinfo(dtype)
            return r.integers(limits.min, limits.max, shape, dtype, endpoint=True)
        x = np.asarray(r.normal(size=shape), "float32" if dtype == "bfloat16" else dtype)
        x.reshape(-1)[:6] = [np.nan, np.inf, -np.inf, -0.0, 1e-7, 6e4][: x.size]
        return x

    def on_backend(self, x: Sent, dtype: str = "") -> Any:
        x = self.backend.from_numpy(x, None)
        return self.backend.xp.astype(x, self.backend.xp.bfloat16) if dtype == "bfloat16" else x

    def in_numpy(self, x: Any) -> Sent:
        xp = self.backend.xp
        return self.backend.to_numpy(xp.astype(x, xp.float32) if x.dtype == getattr(xp, "bfloat16", None) else x)

    def dtypes(self) -> Sequence[str]:
        return [dtype for dtype in DTYPES if dtype != "bfloat16" or hasattr(self.backend.xp, dtype)]

    def expect(self, what: str, received: Any, expected: Sent, dtype: str = "") -> None:
        like = self.on_backend(expected, dtype)
        if tuple(received.shape) != expected.shape or received.dtype != like.dtype:
            raise EngineFault(
                f"{what} has shape {tuple(received.shape)} and dtype {received.dtype}; expected {expected.shape}, {like.dtype}"
            )
        x, y = map(self.in_numpy, (received, like))
        wrong = np.frombuffer(x.tobytes(), np.uint8) != np.frombuffer(y.tobytes(), np.uint8)
        if wrong.any():
            at = f"element {int(np.argmax(wrong)) // x.itemsize} of {x.size} of {like.dtype}"
            raise EngineFault(f"{what} differs from what was sent, from {at} on")

    def expect_all(self, what: str, received: Sequence[Any], expected: Sequence[Sent], dtype: str = "") -> None:
        if len(received) != len(expected):
            raise EngineFault(f"{len(received)} arrays arrived where {len(expected)} were sent")
        for at, (x, y) in enumerate(zip(received, expected, strict=True)):
            self.expect(f"{what} {at}", x, y, dtype)

    def shifted(self, sent: list[Sent], like: list[Sent], dtype: str = "") -> Callable[[], list[Any]]:
        return self.engine.shift(
            [self.on_backend(x, dtype) for x in sent], [(x.shape, self.on_backend(x, dtype)) for x in like]
        )


def _all_gather_text(r: Ranks) -> None:
    for length in (200, 100_000):
        texts = ["naïve 🙂 " * length * rank for rank in range(r.size)]  # that of rank 0 is empty
        if r.engine.all_gather_text(texts[r.rank]) != texts:
            raise EngineFault("all_gather_text did not return the text of each rank, in their order")


def _shift(r: Ranks) -> None:
    for dtype in r.dtypes():
        sent = [[r.array((2, 3 + rank, 5), rank, dtype), r.array((0, 3), rank, dtype)] for rank in range(r.size)]
        r.expect_all("array", r.shifted(sent[r.rank], sent[r.rank - 1], dtype)(), sent[r.rank - 1], dtype)


def _sizes(r: Ranks) -> None:
    sent = [[r.array((size,), 10 * rank + at, "int32") for at, size in enumerate(SIZES)] for rank in range(r.size)]
    r.expect_all("array", r.shifted(sent[r.rank], sent[r.rank - 1])(), sent[r.rank - 1])


def _of_any_size(rank: int) -> int:
    """Return how many elements a rank sends: the ranks differ, and two of them send much."""
    return SIZES[-1 - rank] if rank < 2 else SIZES[rank % len(SIZES)]


def _views(r: Ranks) -> None:
    """Elements of a view are apart in memory, out of order, or several in one place."""

    def views(xp: Any, x: Any) -> list[Any]:
        return [x[:, 1::2, :], x[..., 0].T, xp.broadcast_to(x[:1, :, :], (4, 6, 3)), x[1:3, 2:, 1]]

    whole = [r.array((4, 6, 3), rank, "int32") for rank in range(r.size)]
    expected = [[np.ascontiguousarray(view) for view in views(np, x)] for x in whole]
    mine = views(r.backend.xp, r.on_backend(whole[r.rank]))
    previous = expected[r.rank - 1]
    received = r.engine.shift(mine, [(x.shape, view) for x, view in zip(previous, mine, strict=True)])()
    r.expect_all("view", received, previous)
    for at, view in enumerate(mine):
        of_all = [x[at] for x in expected]
        r.expect_all("view of rank", r.engine.all_gather(view, [x.shape for x in of_all]), of_all)
        r.expect_all("view of rank", r.engine.all_to_all([view] * r.size, [x.shape for x in of_all]), of_all)


def _one_way(r: Ranks) -> None:
    """Ranks of even number send, and the last one never does, as in a ring that is cut."""
    sent = [[r.array((3,), rank)] * (rank % 2 == 0 and rank != r.size - 1) for rank in range(r.size)]
    r.expect_all("array that only some ranks send,", r.shifted(sent[r.rank], sent[r.rank - 1])(), sent[r.rank - 1])


def _on_their_way(r: Ranks) -> None:
    """A long message is still being sent when short ones follow it."""
    sizes = (200_000, 3, 50, 50, 3)
    x = [[r.array((size,), 10 * rank + step) for step, size in enumerate(sizes)] for rank in range(r.size)]
    previous = x[r.rank - 1]
    arrive = [r.shifted([sent], [coming]) for sent, coming in zip(x[r.rank], previous, strict=True)]
    r.expect_all("of several arrays on their way at once, array", [wait()[0] for wait in arrive], previous)


def _memory_of_its_own(r: Ranks) -> None:
    """The sender overwrites an array that has arrived, and other arrays of its shape arrive later."""
    x, later = r.on_backend(r.array((7,), r.rank)), r.on_backend(r.array((7,), 99))
    like, shapes = [((7,), x)], [(7,)] * r.size
    verbs: list[Callable[[Any], list[Any]]] = [
        lambda x: r.engine.shift([x], like)(),
        lambda x: r.engine.all_gather(x, shapes),
        lambda x: r.engine.all_to_all([x] * r.size, shapes),
    ]
    received = [verb(x) for verb in verbs]
    for verb in verbs:
        verb(later)
    r.engine.all_gather_text("")
    x[...] = 0
    r.engine.all_gather_text("")
    expected = [r.array((7,), rank) for rank in range(r.size)]
    r.expect_all("overwritten array", received[0], [expected[r.rank - 1]])
    for of_ranks in received[1:]:
        r.expect_all("overwritten array", [of_ranks[rank] for rank in r.others], [expected[rank] for rank in r.others])


def _all_gather(r: Ranks) -> None:
    small: list[Shape] = [(2, rank, 3) for rank in range(r.size)]
    of_any_size: list[Shape] = [(_of_any_size(rank),) for rank in range(r.size)]
    for dtype, shapes in [*((dtype, small) for dtype in r.dtypes()), ("int32", of_any_size)]:
        arrays = [r.array(shape, rank, dtype) for rank, shape in enumerate(shapes)]
        r.expect_all("array of rank", r.engine.all_gather(r.on_backend(arrays[r.rank], dtype), shapes), arrays, dtype)


def _all_to_all(r: Ranks) -> None:
    ranks = range(r.size)
    small: list[list[Shape]] = [[(rank, 2 + to) for to in ranks] for rank in ranks]
    of_any_size: list[list[Shape]] = [[(_of_any_size((rank + to + 1) % r.size),) for to in ranks] for rank in ranks]
    for dtype, shapes in [*((dtype, small) for dtype in r.dtypes()), ("int32", of_any_size)]:
        sent = [[r.array(shape, 10 * rank + to, dtype) for to, shape in enumerate(each)] for rank, each in enumerate(shapes)]
        expected = [sent[rank][r.rank] for rank in ranks]
        received = r.engine.all_to_all([r.on_backend(x, dtype) for x in sent[r.rank]], [x.shape for x in expected])
        r.expect_all("array of rank", received, expected, dtype)


MESSAGES: dict[str, Callable[[Ranks], None]] = {
    "all_gather_text": _all_gather_text,
    "shift": _shift,
    "shift of any size": _sizes,
    "views": _views,
    "shift by some ranks": _one_way,
    "several shifts at once": _on_their_way,
    "memory of its own": _memory_of_its_own,
    "all_gather": _all_gather,
    "all_to_all": _all_to_all,
}
