"""Split a problem into independent subproblems.

A subproblem has one batch axis, heads in groups that share keys, and masks and biases as views.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from mha_core import Int8Rows
from mha_core.plugin import AttentionProblem, Limits, bias_by_distance, goes_by_sequence, map_rows, runs

from .exponential import FASTEST, NATURAL
from .masks_and_biases import Matrix, PairValues, Toeplitz
from .score_functions import FunctionOfTile
from .subproblem import Subproblem
from .tile_masks import TileMask, grouped_pairs

_SHARED = 96  # tokens of short sequences that share a subproblem: fewer make more calls, more make more hidden pairs
_BATCH = 512  # tokens from which sequences of equal length become a separate batch


class _Arrays(NamedTuple):
    """The arrays of a problem, (..., H, L or S, D) with equal batch axes; lse has a last axis of length 1, or is None."""

    query: Any
    key: Any
    value: Any
    out: Any
    lse: Any

    def map(self, function: Callable[[Any], Any]) -> _Arrays:
        every = (x.map(function) if isinstance(x, Int8Rows) else None if x is None else function(x) for x in self)
        return _Arrays(*every)

    def at(self, index: tuple[int, ...]) -> _Arrays:
        return self.map(lambda x: x[index])


def split(p: AttentionProblem, out: Any, lse: Any) -> Iterator[Subproblem]:
    """Yield subproblems that together write all of ``out`` and, unless it is None, of ``lse``."""
    batch, s = p.batch_shape, p.structure

    def over_batch(x: Any) -> Any:
        return np.broadcast_to(x, (*batch, *x.shape[-3:]))

    query, key, value = (x if x.shape[:-3] == batch else map_rows(x, over_batch) for x in (p.query, p.key, p.value))
    arrays = _Arrays(query, key, value, out, None if lse is None else lse[..., None])
    if goes_by_sequence(p):
        yield from _packed(p, arrays)
        return
    if not batch:
        arrays, batch = arrays.map(lambda x: x[None]), (1,)
    as_written = s.rest is not None or s.packed is not None  # the mask is evaluated as the caller wrote it
    pairs = p.query.shape[-2], len(s.keys)
    array = None if as_written or s.array is None else grouped_pairs(p, s.array, batch, pairs)
    function = p.bias is not None and not p.bias.is_added
    bias = _no_bias if function else _bias(p, batch)
    for at in np.ndindex(*batch[:-1]):
        subproblem = _subproblem(p, arrays.at(at), Limits() if as_written else s.band)
        subproblem.bias = bias(at)
        subproblem.function = None if not function else FunctionOfTile(p, batch, at)
        subproblem.mask = None if array is None else Matrix(array[at])
        subproblem.tile_mask = TileMask(p, batch, at) if as_written else None
        if as_written or s.key_lengths is None:
            yield subproblem
        else:
            lengths: Any = s.key_lengths
            lengths = np.broadcast_to(lengths, batch)[at]
            yield from (subproblem.element(b, n) for b, n in enumerate(np.clip(lengths, 0, subproblem.num_keys).tolist()))


def _subproblem(p: AttentionProblem, arrays: _Arrays, band: Limits) -> Subproblem:
    group, dtype = p.num_groups, np.dtype(p.compute_dtype)
    base = FASTEST if p.bias is None and p.sink is None else NATURAL

    def grouped(x: Any) -> Any:
        """(batch, H, L, D) -> (batch, K, G, L, D), a view."""
        return x.reshape(x.shape[0], x.shape[1] // group, group, *x.shape[2:], copy=False)

    return Subproblem(
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


def _packed(p: AttentionProblem, arrays: _Arrays) -> Iterator[Subproblem]:
    """Yield subproblems of packed sequences: many of one length become a batch, a few short ones share one with a mask."""
    bias = _bias(p, (*p.batch_shape, 1))
    for start, lengths in _neighbours(p.structure.packed or ()):
        alike = len(set(lengths)) == 1
        count, length = (len(lengths), lengths[0]) if alike else (1, sum(lengths))
        stacked = arrays.map(partial(_stacked, start=start, count=count, length=length))
        for at in np.ndindex(*p.batch_shape):
            subproblem = _subproblem(p, stacked.at(at), p.structure.band)
            subproblem.bias = bias(at)
            if not alike:
                subproblem.mask, subproblem.sequences = _same_sequence(lengths), lengths
            yield subproblem


def _neighbours(lengths: tuple[int, ...]) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Yield the sequences of each subproblem: where the first begins, and the lengths of all."""
    start, total = 0, 0
    few: list[int] = []  # short sequences that others may join
    for at, count, length in runs(tuple(filter(None, lengths))):
        if count * length >= _BATCH or length > _SHARED:
            if few:
                yield start, tuple(few)
            yield at, (length,) * count
            start, few, total = at + count * length, [], 0
            continue
        for _ in range(count):
            if total + length > _SHARED:
                yield start, tuple(few)
                start, few, total = start + total, [], 0
            few.append(length)
            total += length
    if total:
        yield start, tuple(few)


def _same_sequence(lengths: tuple[int, ...]) -> Matrix:
    """Return the mask that is True where query and key belong to the same sequence."""
    ids = np.repeat(np.arange(len(lengths)), lengths)
    return Matrix((ids[:, None] == ids[None, :])[None, None, None])


def _stacked(x: Any, *, start: int, count: int, length: int) -> Any:
    """(..., H, T, D) -> (..., count, H, length, D), a view."""
    x = x[..., start : start + count * length, :]
    return np.moveaxis(x.reshape(*x.shape[:-2], count, length, x.shape[-1], copy=False), -3, -4)


def _no_bias(at: tuple[int, ...]) -> None:
    return None


def _bias(p: AttentionProblem, batch: tuple[int, ...]) -> Callable[[tuple[int, ...]], PairValues | None]:
    """Return a function from an index of the leading batch axes to the bias: Toeplitz if by distance only, else full."""
    if p.bias is None:
        return _no_bias
    keys, length = p.structure.keys, p.query.shape[-2]
    if not p.bias.by_distance:  # an array already
        array = p.bias.block(p.grid(range(length), keys))
        matrix = grouped_pairs(p, array, batch, (length, len(keys)))
        return lambda at: Matrix(matrix[at])
    values: Any = bias_by_distance(p)
    values = values[..., 0, :]
    elements = batch if values.ndim > 2 else (*batch[:-1], 1)  # three axes: an offset for each batch element
    values = np.ascontiguousarray(np.broadcast_to(values, (*elements, *values.shape[-2:])), dtype=p.compute_dtype)
    by_distance = values.reshape(*elements, -1, p.num_groups, values.shape[-1])
    return lambda at: Toeplitz(by_distance[at], len(keys))
