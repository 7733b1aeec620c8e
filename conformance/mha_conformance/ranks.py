"""The judge of an engine of communication: all its ranks call ``judge``, in the program that started them.

For example, with a program of three lines that ``mpiexec -n 2`` and ``mpiexec -n 3`` start:

    from mpi4py import MPI
    from mha_conformance.ranks import judge
    judge(MPI.COMM_WORLD, "numpy")
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from mha_core import AttentionState, MhaError, alibi, attention_state, vjp, window
from mha_core.distributed import RanksDiffer, heads_attention, layout_of, ring_attention, shard, split_attention, unshard
from mha_core.shared import Engine, LoadedBackend, engine_of, load

DTYPES = ("float64", "float32", "float16", "int64", "bool")


class EngineFault(MhaError, AssertionError):
    """An engine did not do what ``Engine`` promises; the message names each check that failed."""


def judge(group: Any, backend: str) -> list[str]:
    """Check an engine with arrays of a backend. All ranks of the group make this call.

    Parameters
    ----------
    group : as ``ring_attention``
        With ranks that know their numbers, two at least.
    backend : str
        Whose arrays it is to send.

    Returns
    -------
    list of str
        The names of the checks, which all passed.

    Raises
    ------
    EngineFault
        If any failed on this rank.
    ValueError
        For a group of one rank, and for one compiled program on all ranks.
    """
    ranks = _Ranks(engine_of(group), load(backend))
    failures = []
    for name, check in CHECKS.items():
        try:
            check(ranks)
        except Exception as error:
            failures.append(f"{name}: {type(error).__name__}: {error}")
    if failures:
        raise EngineFault(f"rank {ranks.rank} of {ranks.size}: {'; '.join(failures)}")
    return list(CHECKS)


class _Ranks:
    """An engine, and arrays to send: what each rank sends is known to all."""

    def __init__(self, engine: Engine, backend: LoadedBackend) -> None:
        assert engine.rank is not None and engine.size > 1, (
            "judge needs an engine of at least two ranks that know their numbers"
        )
        self.engine, self.backend, self.rank, self.size = engine, backend, engine.rank, engine.size

    def array(self, shape: tuple[int, ...], seed: int, dtype: str = "float64") -> np.ndarray[Any, Any]:
        return (np.random.default_rng(seed).normal(size=shape) * 100).astype(dtype)

    def on_backend(self, x: np.ndarray[Any, Any]) -> Any:
        return self.backend.from_numpy(x, None)

    def expect(self, what: str, received: Any, expected: np.ndarray[Any, Any], tolerance: float = 0) -> None:
        x = self.backend.to_numpy(received)
        if x.shape != expected.shape or x.dtype != expected.dtype:
            raise EngineFault(f"{what} has shape {x.shape} and dtype {x.dtype}; expected {expected.shape}, {expected.dtype}")
        if x.size and not np.all(np.abs(x.astype(float) - expected.astype(float)) <= tolerance):
            raise EngineFault(f"{what} has other numbers than expected")

    def expect_all(self, what: str, received: list[Any], expected: list[np.ndarray[Any, Any]]) -> None:
        if len(received) != len(expected):
            raise EngineFault(f"{len(received)} arrays arrived where {len(expected)} were sent")
        for at, (x, y) in enumerate(zip(received, expected, strict=True)):
            self.expect(f"{what} {at}", x, y)

    def shifted(self, sent: list[np.ndarray[Any, Any]], like: list[np.ndarray[Any, Any]]) -> Callable[[], list[Any]]:
        return self.engine.shift([self.on_backend(x) for x in sent], [(x.shape, self.on_backend(x)) for x in like])

    def attention(self) -> tuple[list[np.ndarray[Any, Any]], dict[str, Any]]:
        sizes = ((2 * self.size, 11), (self.size, 13), (self.size, 13))
        arrays = [self.array((2, heads, n, 4), seed) / 100 for seed, (heads, n) in enumerate(sizes)]
        return arrays, {"mask": window(8, 0), "bias": alibi(2 * self.size), "softcap": 5.0, "query_offset": 2}


def _all_gather_text(r: _Ranks) -> None:
    texts = [f"rank {rank}: {'naïve ' * 200 * rank}" for rank in range(r.size)]
    if r.engine.all_gather_text(texts[r.rank]) != texts:
        raise EngineFault("all_gather_text did not return the text of each rank, in their order")


def _shift(r: _Ranks) -> None:
    for dtype in DTYPES:
        sent = [[r.array((2, 3 + rank, 5), rank, dtype), r.array((0, 3), rank, dtype)] for rank in range(r.size)]
        r.expect_all(f"{dtype} array", r.shifted(sent[r.rank], sent[r.rank - 1])(), sent[r.rank - 1])


def _views(r: _Ranks) -> None:
    """Elements of a view are apart in memory."""
    whole = [r.array((4, 6, 3), rank) for rank in range(r.size)]
    view = r.on_backend(whole[r.rank])[:, 1::2, :]
    expected = np.ascontiguousarray(whole[r.rank - 1][:, 1::2, :])
    r.expect_all("view", r.engine.shift([view], [(expected.shape, view)])(), [expected])


def _one_way(r: _Ranks) -> None:
    """Ranks of even number send, and the last one never does, as in a ring that is cut."""
    sent = [[r.array((3,), rank)] * (rank % 2 == 0 and rank != r.size - 1) for rank in range(r.size)]
    r.expect_all("array that only some ranks send,", r.shifted(sent[r.rank], sent[r.rank - 1])(), sent[r.rank - 1])


def _on_their_way(r: _Ranks) -> None:
    """A long message is still being sent when short ones follow it."""
    sizes = (200_000, 3, 50, 50, 3)
    x = [[r.array((size,), 10 * rank + step) for step, size in enumerate(sizes)] for rank in range(r.size)]
    previous = x[r.rank - 1]
    arrive = [r.shifted([sent], [coming]) for sent, coming in zip(x[r.rank], previous, strict=True)]
    r.expect_all("of several arrays on their way at once, array", [wait()[0] for wait in arrive], previous)


def _memory_of_its_own(r: _Ranks) -> None:
    """The sender overwrites an array that has arrived."""
    x = r.on_backend(r.array((7,), r.rank))
    received = r.engine.shift([x], [((7,), x)])()
    r.engine.all_gather_text("")
    x[...] = 0
    r.engine.all_gather_text("")
    r.expect_all("overwritten array", received, [r.array((7,), (r.rank - 1) % r.size)])


def _all_gather(r: _Ranks) -> None:
    arrays = [r.array((2, rank, 3), rank) for rank in range(r.size)]
    received = r.engine.all_gather(r.on_backend(arrays[r.rank]), [x.shape for x in arrays])
    r.expect_all("array of rank", received, arrays)


def _all_to_all(r: _Ranks) -> None:
    sent = [[r.array((rank, 2 + to), 10 * rank + to) for to in range(r.size)] for rank in range(r.size)]
    expected = [sent[rank][r.rank] for rank in range(r.size)]
    received = r.engine.all_to_all([r.on_backend(x) for x in sent[r.rank]], [x.shape for x in expected])
    r.expect_all("array of rank", received, expected)


def _attention(r: _Ranks) -> None:
    arrays, options = r.attention()
    exact = attention_state(*map(r.on_backend, arrays), **options)
    for layout in ("contiguous", "zigzag", "striped"):
        parts = [shard(r.on_backend(x), layout, group=r.engine) for x in arrays]
        split = split_attention(r.on_backend(arrays[0]), *parts[1:], group=r.engine, layout=layout, **options)
        r.expect(f"split_attention, {layout}", split.out, r.backend.to_numpy(exact.out), 1e-12)
        for attend in (ring_attention, heads_attention):
            state = attend(*parts, group=r.engine, layout=layout, **options)
            whole = unshard(state.out, layout, group=r.engine)
            r.expect(f"{attend.__name__}, {layout}", whole, r.backend.to_numpy(exact.out), 1e-12)


def _gradients(r: _Ranks) -> None:
    arrays, options = r.attention()
    _, pullback = vjp(attention_state, *map(r.on_backend, arrays), **options)
    d_out = r.array((*arrays[0].shape[:-1], 4), 9) / 100
    exact = pullback(AttentionState(r.on_backend(d_out), None))  # type: ignore[arg-type]
    for attend in (ring_attention, heads_attention):
        parts = [shard(r.on_backend(x), "zigzag", group=r.engine) for x in arrays]
        _, pullback = vjp(attend, *parts, group=r.engine, layout="zigzag", **options)
        gradients = pullback(AttentionState(shard(r.on_backend(d_out), "zigzag", group=r.engine), None))  # type: ignore[arg-type]
        for name, part, whole in zip(("query", "key", "value"), gradients, exact, strict=True):
            rows = [i for ranges in layout_of("zigzag", whole.shape[-2], r.size)[r.rank] for i in ranges]
            r.expect(f"the gradient of {name} by {attend.__name__}", part, r.backend.to_numpy(whole)[..., rows, :], 1e-12)


def _differences(r: _Ranks) -> None:
    x = r.on_backend(r.array((1, 2, 3), 0))
    try:
        ring_attention(x, x, x, group=r.engine, softcap=1.0 + (r.rank == r.size - 1))
    except RanksDiffer:
        return
    raise EngineFault("ranks with different options did not raise")


CHECKS: dict[str, Callable[[_Ranks], None]] = {
    "all_gather_text": _all_gather_text,
    "shift": _shift,
    "shift of views": _views,
    "shift by some ranks": _one_way,
    "several shifts at once": _on_their_way,
    "memory of its own": _memory_of_its_own,
    "all_gather": _all_gather,
    "all_to_all": _all_to_all,
    "attention": _attention,
    "gradients": _gradients,
    "ranks that differ": _differences,
}
