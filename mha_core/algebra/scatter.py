"""The gradients of indexing: rows summed at indices, and an array placed into zeros, without writing into an array."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .arrays import Array, Namespace, as_integers, compute_dtype, device_of


def sum_at(xp: Namespace, d: Array, ids: Array, num_rows: int) -> Array:
    """Return (num_rows, m): row i is the sum of the rows of ``d``, (n, m), whose id is i. Ids below 0 count from the end.

    Rows are sorted by id. A sum over each run of equal ids takes log2(n) steps, in which a row adds the one 1, 2, 4, ... rows
    behind it if that has the same id (Hillis and Steele 1986); the first row of a run then holds its sum.
    """
    count, wide = d.shape[0], compute_dtype(xp, d.dtype)
    if not count:
        return xp.zeros((num_rows, d.shape[1]), dtype=d.dtype, device=device_of(d))
    ids = as_integers(xp, ids)
    ids = xp.where(ids < 0, ids + num_rows, ids)
    order = xp.argsort(ids)
    ids, sums = xp.take(ids, order, axis=0), xp.astype(xp.take(d, order, axis=0), wide, copy=False)
    step = 1
    while step < count:
        same = (ids[step:] == ids[:-step])[:, None]
        sums = xp.concat([sums[:-step, :] + xp.where(same, sums[step:, :], 0), sums[-step:, :]], axis=0)
        step *= 2
    wanted = xp.arange(num_rows, dtype=ids.dtype, device=device_of(d))
    first = xp.clip(xp.searchsorted(ids, wanted), 0, count - 1)
    present = (xp.take(ids, first, axis=0) == wanted)[:, None]
    return xp.astype(xp.where(present, xp.take(sums, first, axis=0), 0), d.dtype, copy=False)


def placed(xp: Namespace, d: Array, keys: Sequence[Any], shape: tuple[int, ...]) -> Array:
    """Return zeros of ``shape`` but for ``d`` at ``keys``, which are integers, slices, None and ``...``."""
    indices = [key for key in keys if key is not None and key is not Ellipsis]
    omitted = [slice(None)] * (len(shape) - len(indices))
    at = next((i for i, key in enumerate(keys) if key is Ellipsis), len(keys))
    whole = [*(key for key in keys[:at] if key is not None), *omitted, *(key for key in keys[at + 1 :] if key is not None)]
    spans = [
        range(size)[key] if isinstance(key, slice) else range(size)[key : key + 1 or None]
        for key, size in zip(whole, shape, strict=True)
    ]
    d = xp.reshape(d, tuple(map(len, spans)))  # an axis of length 1 for each integer, none for None
    for axis, (span, size) in enumerate(zip(spans, shape, strict=True)):
        if span != range(size):
            d = _spread(xp, d, axis, span, size)
    return d


def _spread(xp: Namespace, d: Array, axis: int, span: range, size: int) -> Array:
    """Return zeros but for ``d`` at the indices ``span`` of one axis of length ``size``."""
    before, after, count = tuple(d.shape[:axis]), tuple(d.shape[axis + 1 :]), len(span)

    def zeros(length: int, *more: int) -> Array:
        return xp.zeros((*before, length, *more, *after), dtype=d.dtype, device=device_of(d))

    if not count:
        return zeros(size)
    if span.step < 0:
        d, span = xp.flip(d, axis=axis), span[::-1]
    if span.step > 1 and count > 1:
        wide = xp.concat([xp.reshape(d, (*before, count, 1, *after)), zeros(count, span.step - 1)], axis=axis + 1)
        wide = xp.reshape(wide, (*before, count * span.step, *after))
        d = wide[(*(slice(None),) * axis, slice(0, (count - 1) * span.step + 1), ...)]
    parts = [zeros(span[0]), d, zeros(size - span[-1] - 1)]
    return xp.concat([part for part in parts if part.shape[axis]], axis=axis)
