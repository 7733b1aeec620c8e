"""Attention as a kernel of NumPy's: a problem is cut into tiles, and they go to all cores."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from mha_core.plugin import AttentionProblem, AttentionState, Call

from .part import Part, evenly
from .parts import parts
from .small import prepare
from .terms import Heads
from .threads import one_thread, run
from .tiles import attend

_ROWS = 512  # queries in a tile at most
_SCRATCH = 1 << 21  # bytes that a thread uses beside what it reads and writes: about what stays in its cache
_EDGE, _EDGES = 64, 1 << 16  # keys, and pairs, at least where a band cuts across: what it hides of them is computed in vain
_JOBS = 4  # heads are not computed together where that leaves fewer parts than this, each worth a thread
_BLOCKS = 1 << 19  # pairs of a mask that is evaluated as it was written
_SERIAL = 5e5  # ns of work for which no thread is woken


class Job(NamedTuple):
    """Some queries of some heads. size: keys in a tile, edge: where a band cuts across. cost: in ns, as a guess."""

    part: Part
    rows: range
    heads: list[Heads]
    size: int
    edge: int
    cost: float

    def __call__(self) -> None:
        chunks = self.part.chunks(self.rows, self.size, self.edge)
        with np.errstate(all="ignore"):  # NaN and infinity in, NaN and infinity out
            for heads in self.heads:
                attend(self.part, heads, self.rows, chunks)
                own = self.part.out[heads][..., self.rows.start : self.rows.stop, :]
                if self.part.sequences and not np.isfinite(own).all():
                    for part, rows in self.part.apart(self.rows):
                        attend(part, heads, rows, part.chunks(rows, self.size, self.edge))


def supports(call: Call) -> str | None:
    return "has no empty axes" if 0 in (size for _, shape in call.shapes for size in shape) else None


def attention(p: AttentionProblem) -> AttentionState:
    few = prepare(p)
    if few is not None:  # the same way as where it was prepared, and so the same bits
        return few(p.query, p.key, p.value, p.sink)
    out, lse = _results(p)
    found = list(parts(p, out, lse))
    cost = sum(part.query.shape[0] * part.query.shape[1] * _cost(part, range(part.query.shape[3])) for part in found)
    least = 1 if len(found) >= _JOBS else max(1, min(_JOBS, int(cost / _SERIAL)))
    jobs = [job for part in found for job in _jobs(part, least)]
    if len(jobs) > 1 and cost > _SERIAL:
        run(Job.__call__, sorted(jobs, key=lambda job: -job.cost))
    else:
        with one_thread:
            for job in jobs:
                job()
    return AttentionState(out, lse)


def _results(p: AttentionProblem) -> tuple[Any, Any]:
    """Where the answer goes: laid out as the query is, so that heads that lie side by side still do."""
    query: Any = p.query
    shape = (*p.rows_shape, p.value.shape[-1])
    out = np.empty_like(query, subok=False) if query.shape == shape else np.empty(shape, dtype=query.dtype)
    return out, np.empty(shape[:-1], dtype=p.compute_dtype) if "lse" in p.asked else None


def _jobs(part: Part, least: int) -> Iterator[Job]:
    """At least so many, if there are as many heads. They depend on shapes alone, so that every call gives the same bits."""
    (batch, keys, group, length, dim), (num_keys, width) = part.query.shape, part.value.shape[2:]
    numbers = _SCRATCH // part.dtype.itemsize
    by_query = group * (dim + 2 * width)  # the query, its sum, and what is added to the sum
    by_pair = group * (1 if part.bias is None and part.mask is None and part.blocks is None else 2.25)  # and a mask of a byte
    by_key = dim + width if part.copies else 0
    num_rows = max(1, min(_ROWS // group, numbers // 2 // by_query))
    if part.blocks is not None:
        num_rows = min(num_rows, max(16, _BLOCKS // (batch * max(1, num_keys))))
    stack = 1
    if length <= num_rows:
        cols = min(num_keys, num_keys if part.band == (None, None) else _EDGE)
        stack = int(numbers / (length * (by_query + cols * by_pair) + cols * by_key))
        stack = max(1, min(stack, batch * keys // least))
    all_heads = list(_stacks(batch, keys, stack))
    all_rows = list(evenly(range(length), num_rows))
    count = len(all_rows[0])  # the longest: tiles of one call use the same memory
    size = max(1, int((numbers / stack - count * by_query) / (count * by_pair + by_key)))
    edge = min(size, max(_EDGE, _EDGES // (count * group * stack)))
    for rows in all_rows:
        # a mask is evaluated once for all heads
        for heads in [all_heads] if part.blocks is not None else [[one] for one in all_heads]:
            yield Job(part, rows, heads, size, edge, len(heads) * stack * _cost(part, rows))


def _stacks(batch: int, keys: int, size: int) -> Iterator[Heads]:
    """Heads that are computed together: whole batch elements, or some heads of one."""
    if size >= keys:
        for some in evenly(range(batch), size // keys):
            yield slice(some.start, some.stop), slice(0, keys)
    else:
        for b in range(batch):
            for some in evenly(range(keys), size):
                yield slice(b, b + 1), slice(some.start, some.stop)


def _cost(part: Part, rows: range) -> float:
    """Of one head: a hundred billion operations a second, a few passes over the scores, and a key and a value to read."""
    width = part.query.shape[-1] + part.value.shape[-1]
    return len(part.reach(rows)) * (len(rows) * part.query.shape[2] * (0.02 * width + 1) + 0.3 * width)
