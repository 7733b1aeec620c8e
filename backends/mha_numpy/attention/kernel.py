"""The attention kernel: cut a problem into tasks, each for some queries of some heads, and run them on all cores."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from mha_core.plugin import BLOCK, AttentionProblem, AttentionState, Call, heads_together, pieces

from ..threads import run, run_in_turn
from .few_pairs import prepare
from .masks_and_biases import Heads
from .split import split
from .subproblem import Subproblem
from .tiles import attend

_ROWS = 512  # queries in a tile, at most
_NARROW = 1024  # keys: where a mask lets queries see no more, tiles have few queries, so more heads and fewer hidden pairs
_NARROW_ROWS = 128  # queries in such a tile
_SCRATCH = 1 << 21  # bytes of scratch that a thread uses besides arguments and results: about what stays in its cache
_EDGE, _EDGE_PAIRS = 64, 1 << 16  # keys, or pairs, in a tile cut by a band, at most: hidden pairs are computed in vain
_MIN_TASKS = 4  # heads are computed together only while this many tasks remain, each worth a thread
_MASK_PAIRS = 1 << 22  # pairs of a mask that no view can express, evaluated at a time, at most
_SERIAL = 5e5  # ns of work below which no other thread is woken


class Task(NamedTuple):
    """Some queries of some heads of a subproblem; calling the task computes them."""

    subproblem: Subproblem
    rows: range
    """The queries."""
    heads: list[Heads]
    """Each entry: heads that are computed together."""
    size: int
    """Keys in a tile, at most."""
    edge: int
    """Keys in a tile that the band cuts across, at most."""
    cost: float
    """Estimated time in ns."""

    def __call__(self) -> None:
        tiles = self.subproblem.tiles(self.rows, self.size, self.edge)
        with np.errstate(all="ignore"):  # NaN and infinity in, NaN and infinity out
            for heads in self.heads:
                attend(self.subproblem, heads, self.rows, tiles)
                out = self.subproblem.out[heads][..., self.rows.start : self.rows.stop, :]
                if self.subproblem.sequences and not np.isfinite(out).all():
                    for sequence, rows in self.subproblem.each_sequence(self.rows):
                        attend(sequence, heads, rows, sequence.tiles(rows, self.size, self.edge))


def supports(call: Call) -> str | None:
    """Return why the kernel does not support a call, or None."""
    return "does not support empty axes" if 0 in (size for _, shape in call.shapes for size in shape) else None


def attention(p: AttentionProblem) -> AttentionState:
    """Attention as ``mha_core`` defines it. Every call returns the same bits, for any number of threads."""
    few_pairs = prepare(p)
    if few_pairs is not None:  # the function that a prepared call uses, so both return the same bits
        return few_pairs(p.query, p.key, p.value, p.sink)
    out, lse = _results(p)
    subproblems = list(split(p, out, lse))
    cost = sum(s.query.shape[0] * s.query.shape[1] * _cost(s, range(s.query.shape[3])) for s in subproblems)
    least = 1 if len(subproblems) >= _MIN_TASKS else max(1, min(_MIN_TASKS, int(cost / _SERIAL)))
    tasks = [task for subproblem in subproblems for task in _tasks(subproblem, least)]
    if len(tasks) > 1 and cost > _SERIAL:
        run(Task.__call__, sorted(tasks, key=lambda task: -task.cost))
    else:
        run_in_turn(Task.__call__, tasks)
    return AttentionState(out, lse)


def _results(p: AttentionProblem) -> tuple[Any, Any]:
    """Return uninitialised out and lse. The layout of out follows the query, so that heads adjacent in memory stay adjacent."""
    query: Any = p.query
    shape = (*p.rows_shape, p.value.shape[-1])
    out = np.empty_like(query, subok=False) if query.shape == shape else np.empty(shape, dtype=query.dtype)
    return out, np.empty(shape[:-1], dtype=p.compute_dtype) if "lse" in p.asked else None


def _tasks(subproblem: Subproblem, least: int) -> Iterator[Task]:
    """Yield at least ``least`` tasks, if there are as many heads.

    Tasks depend on shapes only, so every call returns the same bits.
    """
    (batch, key_heads, group, length, dim), (num_keys, width) = subproblem.query.shape, subproblem.value.shape[2:]
    numbers = _SCRATCH // subproblem.dtype.itemsize
    views_only = not subproblem.adds and subproblem.mask is None and subproblem.tile_mask is None
    per_query = group * (dim + 2 * width)  # the query, the running sum, and what a tile adds to it
    per_pair = group * (1 if views_only else 2.25)  # the score; a bias or mask as numbers, and a mask as bytes
    per_key = dim + width if subproblem.copies else 0
    num_rows = max(1, min(_ROWS // group, numbers // 2 // per_query))
    narrow = _is_narrow(subproblem)
    if narrow:
        num_rows = min(num_rows, max(BLOCK, _NARROW_ROWS // group))
    if subproblem.tile_mask is not None:
        num_rows = min(num_rows, max(16, _MASK_PAIRS // (subproblem.tile_mask.copies * max(1, num_keys))))
    all_rows = pieces(range(length), num_rows, even=True)
    longest = len(all_rows[0])  # all tiles of a call share memory of this size
    together = 1  # heads
    if narrow or len(all_rows) == 1:
        cols = min(num_keys, _EDGE if narrow or subproblem.band != (None, None) else num_keys)
        together = int(numbers / (longest * (per_query + cols * per_pair) + cols * per_key))
        together = max(1, min(together, batch * key_heads * len(all_rows) // least))
    all_heads = heads_together(batch, key_heads, together, even=True)
    size = max(1, int((numbers / together - longest * per_query) / (longest * per_pair + per_key)))
    edge = min(size, max(_EDGE, _EDGE_PAIRS // (longest * group * together)))
    for rows in all_rows:
        # a mask is evaluated once for all heads
        for heads in [all_heads] if subproblem.tile_mask is not None else [[each] for each in all_heads]:
            yield Task(subproblem, rows, heads, size, edge, len(heads) * together * _cost(subproblem, rows))


def _is_narrow(subproblem: Subproblem) -> bool:
    """Return whether there is a mask, queries see few keys, and there are heads enough to fill a tile of few queries."""
    (batch, key_heads, group, length, _), num_keys = subproblem.query.shape, subproblem.num_keys
    band, masked, rows = subproblem.band, subproblem.tile_mask, max(BLOCK, _NARROW_ROWS // group)
    if length <= rows or batch * key_heads * group * rows < 2 * _ROWS or (masked is None and band == (None, None)):
        return False
    seen = band.most_keys(rows, num_keys) if masked is None else masked.mean_keys(range(length), num_keys)
    return seen <= _NARROW


def _cost(subproblem: Subproblem, rows: range) -> float:
    """Estimated ns for one head: 1e11 operations a second, a few passes over the scores, and reading keys and values."""
    width = subproblem.query.shape[-1] + subproblem.value.shape[-1]
    masked, num_keys = subproblem.tile_mask, subproblem.num_keys
    keys = len(subproblem.band.keys_of(rows, range(num_keys))) if masked is None else masked.mean_keys(rows, num_keys)
    return keys * (len(rows) * subproblem.query.shape[2] * (0.02 * width + 1) + 0.3 * width)
