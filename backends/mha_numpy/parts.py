"""A problem as parts that tiles can be cut from: one batch axis, heads in groups, terms in their tile form; all are views."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from mha_core.plugin import AttentionProblem, Relation, goes_by_sequence, runs

from .base import FASTEST, NATURAL
from .part import Part
from .terms import Line, Matrix, Term

_SPAN = 96  # tokens of short sequences in one problem: less is more calls, more is more pairs that are hidden
_BATCH = 512  # tokens of sequences of one length that are a batch of their own


class _Arrays(NamedTuple):
    """(..., H, L or S, D) each, batch axes alike; lse with a last axis of length 1, or None."""

    query: Any
    key: Any
    value: Any
    out: Any
    lse: Any

    def map(self, function: Callable[[Any], Any]) -> _Arrays:
        return _Arrays(*(None if x is None else function(x) for x in self))

    def at(self, index: tuple[int, ...]) -> _Arrays:
        return self.map(lambda x: x[index])


def parts(p: AttentionProblem, out: Any, lse: Any) -> Iterator[Part]:
    """Attention that writes into ``out`` and ``lse``."""
    batch, s = p.batch_shape, p.structure
    given: tuple[Any, ...] = (p.query, p.key, p.value)
    given = tuple(x if x.shape[:-3] == batch else np.broadcast_to(x, (*batch, *x.shape[-3:])) for x in given)
    query, key, value = given
    arrays = _Arrays(query, key, value, out, None if lse is None else lse[..., None])
    if goes_by_sequence(p):
        yield from _sequences(p, arrays)
        return
    if not batch:
        arrays, batch = arrays.map(lambda x: x[None]), (1,)
    as_written = s.rest is not None or s.packed is not None
    pairs = p.query.shape[-2], len(s.keys)
    array = None if as_written or s.array is None else _matrix(p, s.array, batch, pairs)
    bias = _bias(p, batch)
    for at in np.ndindex(*batch[:-1]):
        part = _part(p, arrays.at(at), (None, None) if as_written else s.band)
        part.bias = bias(at)
        part.mask = None if array is None else Matrix(array[at])
        part.blocks = partial(_block, p, batch, at) if as_written else None
        if as_written or s.key_lengths is None:
            yield part
        else:
            lengths: Any = s.key_lengths
            lengths = np.broadcast_to(lengths, batch)[at]
            yield from (part.element(b, n) for b, n in enumerate(np.clip(lengths, 0, part.num_keys).tolist()))


def _part(p: AttentionProblem, arrays: _Arrays, band: tuple[int | None, int | None]) -> Part:
    group, dtype = p.num_groups, np.dtype(p.compute_dtype)
    base = FASTEST if p.bias is None and p.sink is None else NATURAL

    def grouped(x: Any) -> Any:
        """(batch, H, L, D) -> (batch, K, G, L, D), a view."""
        return x.reshape(x.shape[0], x.shape[1] // group, group, *x.shape[2:], copy=False)

    return Part(
        query=grouped(arrays.query),
        key=arrays.key,
        value=arrays.value,
        out=grouped(arrays.out),
        lse=None if arrays.lse is None else grouped(arrays.lse)[..., 0],
        dtype=dtype,
        base=base,
        scale=p.scale / (base.ln if p.softcap is None else p.softcap),
        softcap=p.softcap,
        sink=None if p.sink is None else np.asarray(p.sink, dtype=dtype).reshape(-1, group),
        band=band,
    )


def _sequences(p: AttentionProblem, arrays: _Arrays) -> Iterator[Part]:
    """Sequences laid end to end: many of one length are a batch; a few short ones are one problem with a mask."""
    bias = _bias(p, (*p.batch_shape, 1))
    for start, lengths in _spans(p.structure.packed or ()):
        alike = len(set(lengths)) == 1
        count, length = (len(lengths), lengths[0]) if alike else (1, sum(lengths))
        stacked = arrays.map(partial(_stacked, start=start, count=count, length=length))
        for at in np.ndindex(*p.batch_shape):
            part = _part(p, stacked.at(at), p.structure.band)
            part.bias = bias(at)
            if not alike:
                part.mask, part.sequences = _same_sequence(lengths), lengths
            yield part


def _spans(lengths: tuple[int, ...]) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Where each starts, and the lengths of its sequences."""
    start, many = 0, 0
    few: list[int] = []  # sequences that more may join
    for at, count, length in runs(tuple(filter(None, lengths))):
        if count * length >= _BATCH or length > _SPAN:
            if few:
                yield start, tuple(few)
            yield at, (length,) * count
            start, few, many = at + count * length, [], 0
            continue
        for _ in range(count):
            if many + length > _SPAN:
                yield start, tuple(few)
                start, few, many = start + many, [], 0
            few.append(length)
            many += length
    if many:
        yield start, tuple(few)


def _same_sequence(lengths: tuple[int, ...]) -> Matrix:
    of = np.repeat(np.arange(len(lengths)), lengths)
    return Matrix((of[:, None] == of[None, :])[None, None, None])


def _stacked(x: Any, *, start: int, count: int, length: int) -> Any:
    """(..., H, T, D) -> (..., count, H, length, D), a view."""
    x = x[..., start : start + count * length, :]
    return np.moveaxis(x.reshape(*x.shape[:-2], count, length, x.shape[-1], copy=False), -3, -4)


def _matrix(p: AttentionProblem, array: Any, batch: tuple[int, ...], pairs: tuple[int, int]) -> np.ndarray:
    """What broadcasts to (..., H, l, s), as (..., K, G, l, s), a view."""
    return np.broadcast_to(array, (*batch, p.query.shape[-3], *pairs)).reshape(*batch, -1, p.num_groups, *pairs, copy=False)


def _bias(p: AttentionProblem, batch: tuple[int, ...]) -> Callable[[tuple[int, ...]], Term | None]:
    """One that looks at distances only is a number for each of them; any other is an array already."""
    if p.bias is None:
        return lambda at: None
    keys, length = p.structure.keys, p.query.shape[-2]
    if not p.bias.by_distance:
        block = p.bias.block(p.grid(range(length), keys))
        matrix = _matrix(p, block, batch, (length, len(keys)))
        return lambda at: Matrix(matrix[at])
    # the first query, and all distances of any query from any key
    values: Any = p.bias.block(p.grid(range(1), range(keys.stop - 1, keys.start - length, -1)))
    values = values[..., 0, :]
    elements = batch if values.ndim > 2 else (*batch[:-1], 1)  # an offset for each batch element
    values = np.ascontiguousarray(np.broadcast_to(values, (*elements, *values.shape[-2:])), dtype=p.compute_dtype)
    lines = values.reshape(*elements, -1, p.num_groups, values.shape[-1])
    return lambda at: Line(lines[at], len(keys))


def _block(p: AttentionProblem, batch: tuple[int, ...], at: tuple[int, ...], rows: range, cols: range) -> Any:
    """Which pairs of a block attend: None for all of them, False for none."""
    start = p.structure.keys.start
    grid = p.grid(rows, range(start + cols.start, start + cols.stop))
    assert p.mask is not None
    relation = p.mask.relation(grid)
    if relation is not Relation.SOME:
        return None if relation is Relation.ALL else False
    block: Any = p.mask.block(grid)
    return _matrix(p, block, batch, (len(rows), len(cols)))[at]
