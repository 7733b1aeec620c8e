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
    found: dict[str, Exception] = {}
    for name, check in CHECKS.items():
        try:
            check(ranks)
        except Exception as error:  # listed below
            found[name] = error
    if found:
        said = "; ".join(f"{name}: {type(error).__name__}: {error}" for name, error in found.items())
        raise EngineFault(f"rank {ranks.rank} of {ranks.size}: {said}")
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

    def own(self, x: np.ndarray[Any, Any]) -> Any:
        return self.backend.from_numpy(x, None)

    def expect(self, what: str, found: Any, expected: np.ndarray[Any, Any], tolerance: float = 0) -> None:
        x = self.backend.to_numpy(found)
        if x.shape != expected.shape or x.dtype != expected.dtype:
            raise EngineFault(f"{what} has shape {x.shape} and dtype {x.dtype}; expected {expected.shape}, {expected.dtype}")
        if x.size and not np.all(np.abs(x.astype(float) - expected.astype(float)) <= tolerance):
            raise EngineFault(f"{what} has other numbers than expected")

    def shifted(self, sent: list[np.ndarray[Any, Any]], like: list[np.ndarray[Any, Any]]) -> Callable[[], list[Any]]:
        return self.engine.shift([self.own(x) for x in sent], [(x.shape, self.own(x)) for x in like])

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
        arrays = sent[r.rank - 1]
        for found, expected in zip(r.shifted(sent[r.rank], arrays)(), arrays, strict=True):
            r.expect(f"an array of {dtype} from rank {(r.rank - 1) % r.size}", found, expected)


def _views(r: _Ranks) -> None:
    whole = [r.array((4, 6, 3), rank) for rank in range(r.size)]
    view = r.own(whole[r.rank])[:, 1::2, :]
    expected = np.ascontiguousarray(whole[r.rank - 1][:, 1::2, :])
    found = r.engine.shift([view], [(expected.shape, view)])()
    r.expect("a view whose elements are apart in memory", found[0], expected)


def _one_way(r: _Ranks) -> None:
    """Ranks of even number send, and the last one never does, as in a ring that is cut."""
    sends = [rank % 2 == 0 and rank != r.size - 1 for rank in range(r.size)]
    x = [r.array((3,), rank) for rank in range(r.size)]
    like = [x[r.rank - 1]] if sends[r.rank - 1] else []
    found = r.shifted([x[r.rank]] if sends[r.rank] else [], like)()
    if len(found) != len(like):
        raise EngineFault(f"{len(found)} arrays arrived where {len(like)} were sent")
    for each, expected in zip(found, like, strict=True):
        r.expect("an array that only some ranks send", each, expected)


def _on_their_way(r: _Ranks) -> None:
    """A long message is still being sent when short ones follow it."""
    sizes = (200_000, 3, 50, 50, 3)
    x = [[r.array((size,), 10 * rank + step) for step, size in enumerate(sizes)] for rank in range(r.size)]
    previous = x[r.rank - 1]
    arrive = [r.shifted([sent], [coming]) for sent, coming in zip(x[r.rank], previous, strict=True)]
    for step, expected in enumerate(previous):
        r.expect(f"array {step} of {len(sizes)} that were on their way at once", arrive[step]()[0], expected)


def _memory_of_its_own(r: _Ranks) -> None:
    x = r.own(r.array((7,), r.rank))
    found = r.engine.shift([x], [((7,), x)])()[0]
    r.engine.all_gather_text("")
    x[...] = 0
    r.engine.all_gather_text("")
    r.expect("an array that its sender has overwritten since", found, r.array((7,), (r.rank - 1) % r.size))


def _all_gather(r: _Ranks) -> None:
    arrays = [r.array((2, rank, 3), rank) for rank in range(r.size)]
    found = r.engine.all_gather(r.own(arrays[r.rank]), [x.shape for x in arrays])
    for rank, (each, expected) in enumerate(zip(found, arrays, strict=True)):
        r.expect(f"what rank {rank} gave to all", each, expected)


def _all_to_all(r: _Ranks) -> None:
    sent = [[r.array((rank, 2 + to), 10 * rank + to) for to in range(r.size)] for rank in range(r.size)]
    expected = [sent[rank][r.rank] for rank in range(r.size)]
    found = r.engine.all_to_all([r.own(x) for x in sent[r.rank]], [x.shape for x in expected])
    for rank, (each, wanted) in enumerate(zip(found, expected, strict=True)):
        r.expect(f"what rank {rank} sent to rank {r.rank}", each, wanted)


def _attention(r: _Ranks) -> None:
    arrays, options = r.attention()
    exact = attention_state(*map(r.own, arrays), **options)
    for layout in ("contiguous", "zigzag", "striped"):
        parts = [shard(r.own(x), layout, group=r.engine) for x in arrays]
        split = split_attention(r.own(arrays[0]), *parts[1:], group=r.engine, layout=layout, **options)
        r.expect(f"split_attention, {layout}", split.out, r.backend.to_numpy(exact.out), 1e-12)
        for attend in (ring_attention, heads_attention):
            state = attend(*parts, group=r.engine, layout=layout, **options)
            whole = unshard(state.out, layout, group=r.engine)
            r.expect(f"{attend.__name__}, {layout}", whole, r.backend.to_numpy(exact.out), 1e-12)


def _gradients(r: _Ranks) -> None:
    arrays, options = r.attention()
    _, pullback = vjp(attention_state, *map(r.own, arrays), **options)
    d_out = r.array((*arrays[0].shape[:-1], 4), 9) / 100
    exact = pullback(AttentionState(r.own(d_out), None))  # type: ignore[arg-type]
    for attend in (ring_attention, heads_attention):
        parts = [shard(r.own(x), "zigzag", group=r.engine) for x in arrays]
        _, pullback = vjp(attend, *parts, group=r.engine, layout="zigzag", **options)
        found = pullback(AttentionState(shard(r.own(d_out), "zigzag", group=r.engine), None))  # type: ignore[arg-type]
        for name, mine, whole in zip(("query", "key", "value"), found, exact, strict=True):
            own = [i for some in layout_of("zigzag", whole.shape[-2], r.size)[r.rank] for i in some]
            r.expect(f"the gradient of {name} by {attend.__name__}", mine, r.backend.to_numpy(whole)[..., own, :], 1e-12)


def _differences(r: _Ranks) -> None:
    x = r.own(r.array((1, 2, 3), 0))
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
