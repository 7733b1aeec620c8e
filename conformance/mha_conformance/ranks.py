"""The judge of an engine of communication: all its ranks call ``judge``, in the program that started them.

For example, with a program of three lines that ``mpiexec -n 2``, ``-n 3`` and ``-n 4`` start:

    from mpi4py import MPI
    from mha_conformance.ranks import judge
    judge(MPI.COMM_WORLD, "numpy")
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from mha_core import AttentionState, alibi, attention_state, vjp, window
from mha_core.distributed import RanksDiffer, heads_attention, ring_attention, shard, split_attention, unshard
from mha_core.shared import engine_of, load

from .messages import MESSAGES, EngineFault, Ranks

__all__ = ["EngineFault", "judge"]


def judge(group: Any, backend: str) -> list[str]:
    """Check an engine with arrays of a backend. All ranks of the group make this call.

    Parameters
    ----------
    group : as ``ring_attention``
        With ranks that know their numbers: two at least, but some faults show with four only.
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
    ranks = Ranks(engine_of(group), load(backend))
    failures = []
    for name, check in CHECKS.items():
        try:
            check(ranks)
        except Exception as error:
            failures.append(f"{name}: {type(error).__name__}: {error}")
    if failures:
        raise EngineFault(f"rank {ranks.rank} of {ranks.size}: {'; '.join(failures)}")
    return list(CHECKS)


def _problem(r: Ranks) -> tuple[list[np.ndarray[Any, Any]], dict[str, Any]]:
    """Return query, key and value of a whole problem, and its options."""
    sizes = ((2 * r.size, 11), (r.size, 13), (r.size, 13))
    arrays = [_normal((2, heads, n, 4), seed) for seed, (heads, n) in enumerate(sizes)]
    return arrays, {"mask": window(8, 0), "bias": alibi(2 * r.size), "softcap": 5.0, "query_offset": 2}


def _normal(shape: tuple[int, ...], seed: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).normal(size=shape)


def _expect_close(r: Ranks, what: str, received: Any, exact: Any) -> None:
    x, y = map(r.backend.to_numpy, (received, exact))
    if x.shape != y.shape or x.dtype != y.dtype or not np.all(np.abs(x - y) <= 1e-12):
        raise EngineFault(f"{what} has other numbers than on one process")


def _attention(r: Ranks) -> None:
    arrays, options = _problem(r)
    exact = attention_state(*map(r.on_backend, arrays), **options)
    for layout in ("contiguous", "zigzag", "striped"):
        parts = [shard(r.on_backend(x), layout, group=r.engine) for x in arrays]
        split = split_attention(r.on_backend(arrays[0]), *parts[1:], group=r.engine, layout=layout, **options)
        _expect_close(r, f"split_attention, {layout}", split.out, exact.out)
        for attend in (ring_attention, heads_attention):
            state = attend(*parts, group=r.engine, layout=layout, **options)
            whole = unshard(state.out, layout, group=r.engine)
            _expect_close(r, f"{attend.__name__}, {layout}", whole, exact.out)


def _gradients(r: Ranks) -> None:
    arrays, options = _problem(r)
    _, pullback = vjp(attention_state, *map(r.on_backend, arrays), **options)
    d_out = _normal((*arrays[0].shape[:-1], 4), 9)
    exact = pullback(AttentionState(r.on_backend(d_out), None))  # type: ignore[arg-type]
    for attend in (ring_attention, heads_attention):
        parts = [shard(r.on_backend(x), "zigzag", group=r.engine) for x in arrays]
        _, pullback = vjp(attend, *parts, group=r.engine, layout="zigzag", **options)
        gradients = pullback(AttentionState(shard(r.on_backend(d_out), "zigzag", group=r.engine), None))  # type: ignore[arg-type]
        for name, part, whole in zip(("query", "key", "value"), gradients, exact, strict=True):
            mine = shard(whole, "zigzag", group=r.engine)
            _expect_close(r, f"the gradient of {name} by {attend.__name__}", part, mine)


def _differences(r: Ranks) -> None:
    x = r.on_backend(_normal((1, 2, 3), 0))
    try:
        ring_attention(x, x, x, group=r.engine, softcap=1.0 + (r.rank == r.size - 1))
    except RanksDiffer:
        return
    raise EngineFault("ranks with different options did not raise")


CHECKS: dict[str, Callable[[Ranks], None]] = {
    **MESSAGES,
    "attention": _attention,
    "gradients": _gradients,
    "ranks that differ": _differences,
}
