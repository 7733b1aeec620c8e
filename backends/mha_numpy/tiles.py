"""Attention in tiles of scores that stay in cache, transposed: a row for each key, so that maxima and sums run along queries.

    t = scale q k^T / ln b      w = b^(t - m)      out = w^T v / sum w      lse = (m + log_b sum w) ln b

No m is needed where |q| |k| bounds t (Cauchy and Schwarz): nothing can overflow then, and one pass less is made. Elsewhere m is
the running maximum (Milakov and Gimelshein 2018, algorithm 3). Which it is depends on what is seen only.
"""

from __future__ import annotations

import math

import numpy as np

from .part import Chunk, Part
from .scratch import as_usable, scratch
from .terms import Heads

_BOUND = 60.0  # of scores that are exponentiated as they are: sums of b^60 are far from overflow
_FEW = 16  # queries of which a tile stands the other way round: passes along so few of them would be short loops
_SLAB = 1024  # keys whose norms are taken at a time
_HELD = 500  # numbers of a product up to which np.matmul keeps the interpreter to itself, however many keys it sums over
_SHORT = 1 << 17  # multiplications that are over before another thread could be awake
_LEAST = 2.0**-20  # sums of b^t below this come from scores so low that a product with a small value may lose its digits


def attend(part: Part, heads: Heads, rows: range, chunks: list[Chunk]) -> None:
    """Write ``out``, and ``lse`` where it is wanted, of some heads and queries."""
    query = _queries(part, heads, rows)
    bound = _bound(part, heads, query)
    sums = _Sums(part, heads, query, rows, chunks, bound)
    if not sums.shifted and not sums.in_range():
        sums = _Sums(part, heads, query, rows, chunks, math.inf)
    out, total = sums.out, sums.total
    if not total.all():  # rows that see nothing
        out[(total == 0)[:, :, 0]] = 0
    rows_first = (*out.shape[:2], len(rows), part.query.shape[2])  # (batch, key heads, rows, group)
    share = np.divide(1, total, out=np.zeros_like(total), where=total != 0).reshape(*rows_first, 1)
    to = part.out[*heads, :, rows.start : rows.stop].transpose(0, 1, 3, 2, 4)
    np.multiply(out.reshape(*rows_first, -1), share, out=to, casting="unsafe")
    if part.lse is not None:
        lse = np.log(total)
        if sums.shifted:
            lse += sums.top * part.base.ln
        part.lse[*heads, :, rows.start : rows.stop] = lse.reshape(rows_first).swapaxes(-1, -2)


def _queries(part: Part, heads: Heads, rows: range) -> np.ndarray:
    """(batch, key heads, rows * group, D): a group's queries side by side, with the scale in them."""
    query = part.query[*heads, :, rows.start : rows.stop].transpose(0, 1, 3, 2, 4)
    scaled = scratch("query", query.shape, part.dtype)
    np.multiply(query, part.scale, out=scaled, dtype=part.dtype)
    return scaled.reshape(*query.shape[:2], -1, query.shape[-1])


def _bound(part: Part, heads: Heads, query: np.ndarray) -> float:
    """What no score exceeds, nor falls below its negative; NaN where there is one."""
    (*_, n, dim), num_keys = query.shape, part.num_keys
    if part.bias is not None or n * num_keys < (n + num_keys) * dim:  # to look at so few scores costs less than at all keys
        return math.inf
    if part.softcap is None:
        key = heads[0].start, heads[1].start
        longest = part.longest.get(key)
        if longest is None:
            longest = part.longest[key] = _longest(part, part.key[heads])
        bound = _longest(part, query) * longest
    else:
        bound = part.softcap / part.base.ln
    return bound if part.sink is None else float(np.maximum(bound, np.abs(part.sink[heads[1]]).max()))


def _longest(part: Part, x: np.ndarray) -> float:
    """The norm of the longest vector."""
    slabs = [x] if x.shape[2] <= _SLAB else [x[:, :, at : at + _SLAB] for at in range(0, x.shape[2], _SLAB)]
    squares = [np.maximum.reduce(np.vecdot(slab, slab, dtype=part.dtype), axis=None) for slab in slabs]
    return math.sqrt(squares[0] if len(squares) == 1 else np.max(squares))


class _Sums:
    """Over the keys of some chunks: out = sum w v (batch, key heads, n, E), total = sum w (batch, key heads, 1, n).

    n = rows * group. top: m as total, where it is ``shifted``.
    """

    def __init__(self, part: Part, heads: Heads, query: np.ndarray, rows: range, chunks: list[Chunk], bound: float) -> None:
        self.part, self.heads, self.shifted = part, heads, not bound < _BOUND
        self.few = query.shape[2] < _FEW
        shape, group = query.shape[:3], part.query.shape[2]
        self.out = scratch("out", (*shape, part.value.shape[-1]), part.dtype)
        self.total, self.top = np.empty((2, *shape[:2], 1, shape[2]), dtype=part.dtype)
        self.alone = len(chunks) == 1 and chunks[0].rows == rows and part.sink is None
        self._begin(len(rows))
        for chunk in chunks:
            own = slice((chunk.rows.start - rows.start) * group, (chunk.rows.stop - rows.start) * group)
            self._add(chunk, query[:, :, own], own)

    def in_range(self) -> bool:
        """Whether no value was so large, and no row's scores so low, that a product with b^t lost what it should hold."""
        low = np.minimum.reduce(self.total, axis=None, initial=math.inf, where=self.total != 0) < _LEAST
        return not low and bool(np.isfinite(self.out).all())

    def _begin(self, num_rows: int) -> None:
        """Nothing is seen yet but the sink, a score without a value."""
        if self.shifted:
            self.top.fill(np.finfo(self.part.dtype).min)
        if not self.alone:
            self.out.fill(0)
            self.total.fill(0)
        if self.part.sink is not None:
            sink = np.tile(self.part.sink[self.heads[1]], num_rows)[None, :, None]  # (1, key heads, 1, rows * group)
            if self.shifted:
                np.maximum(self.top, sink, out=self.top)
                sink = sink - self.top
            self.total += self.part.base.power(sink)

    def _add(self, chunk: Chunk, query: np.ndarray, own: slice) -> None:
        part = self.part
        value = as_usable(part.value[*self.heads, chunk.cols.start : chunk.cols.stop], part.dtype, "value")
        weights = self._scores(chunk, query)
        out, total = self.out[:, :, own], self.total[..., own]
        if self.shifted:
            self._hide(weights, chunk, -math.inf)
            self._shift(weights, out, total, self.top[..., own])
        else:
            part.base.power(weights, out=weights)
            self._hide(weights, chunk, 0.0)
        ones = np.ones((1, len(chunk.cols)), dtype=part.dtype)
        if self.alone:
            np.matmul(ones, weights, out=total)
            _product(weights.swapaxes(-1, -2), value, out=out)
        else:
            total += np.matmul(ones, weights)
            out += _product(weights.swapaxes(-1, -2), value, out=scratch("more", out.shape, part.dtype))

    def _scores(self, chunk: Chunk, query: np.ndarray) -> np.ndarray:
        """(batch, key heads, cols, n)."""
        part, (*stack, n, _) = self.part, query.shape
        key = as_usable(part.key[*self.heads, chunk.cols.start : chunk.cols.stop], part.dtype, "key")
        if self.few:
            rows = scratch("scores", (*stack, n, len(chunk.cols)), part.dtype)
            s = np.matmul(query, key.swapaxes(-1, -2), out=rows).swapaxes(-1, -2)
        else:
            s = scratch("scores", (*stack, len(chunk.cols), n), part.dtype)
            np.matmul(key, query.swapaxes(-1, -2), out=s)
        if part.softcap is not None:
            np.tanh(s, out=s)
            s *= part.softcap / part.base.ln
        if part.bias is not None:
            tile = part.bias.tile(self.heads, chunk.rows, chunk.cols)
            pairs = self._pairs(s)
            pairs += np.multiply(tile, 1 / part.base.ln, out=scratch("bias", tile.shape, part.dtype), dtype=part.dtype)
        return s

    def _pairs(self, s: np.ndarray) -> np.ndarray:
        """(batch, key heads, cols, rows * group) -> (batch, key heads, cols, rows, group), a view."""
        return s.reshape(*s.shape[:3], -1, self.part.query.shape[2], copy=False)

    def _hide(self, s: np.ndarray, chunk: Chunk, fill: float) -> None:
        """Write ``fill`` for pairs that do not attend; where it is 0, s is finite, and a product does for a band."""
        part, pairs = self.part, self._pairs(s)
        if chunk.cut:
            hidden, seen = part.band_lines()
            for rows in part.corners(chunk):
                corner = pairs[..., rows.start - chunk.rows.start : rows.stop - chunk.rows.start, :]
                if fill == 0:
                    corner *= seen.tile(self.heads, rows, chunk.cols)
                else:
                    np.copyto(corner, fill, where=hidden.tile(self.heads, rows, chunk.cols))
        for tile in part.masks(self.heads, chunk):
            if fill == 0:  # a product, which does not wait for a truth at every pair
                numbers = scratch("seen", tile.shape, part.dtype)
                np.copyto(numbers, tile)
                pairs *= numbers
            else:
                np.copyto(pairs, fill, where=np.logical_not(tile, out=scratch("hidden", tile.shape, np.dtype(bool))))

    def _shift(self, s: np.ndarray, out: np.ndarray, total: np.ndarray, top: np.ndarray) -> None:
        """b^(s - m) in the place of s, with the new maximum m, to which earlier sums are brought too."""
        highest = np.maximum.reduce(s, axis=-2, keepdims=True)
        np.maximum(highest, top, out=highest)  # top is finite where nothing is seen yet
        if not self.alone:
            earlier = self.part.base.power(top - highest)
            total *= earlier
            out *= earlier.swapaxes(-1, -2)
        top[...] = highest
        s -= highest
        floor, nothing = self.part.base.floor(s.dtype.char)
        floor = np.repeat(floor, s.shape[-2]).reshape(-1, 1) if self.few else np.repeat(floor, s.shape[-1])
        np.maximum(s, floor, out=s)  # by an array that lies as s does: with a single number it takes four times as long
        self.part.base.power(s, out=s)
        s -= nothing  # so that what is hidden, or far below the maximum, is 0


def _product(x: np.ndarray, y: np.ndarray, out: np.ndarray) -> np.ndarray:
    """x y, (..., n, keys) times (..., keys, width): by spans of keys where NumPy would let no other thread work meanwhile."""
    spans, keys = _HELD // out.size + 1, x.shape[-1]
    if spans == 1 or keys * out.size < _SHORT:
        return np.matmul(x, y, out=out)
    each = keys // spans
    within, rest = slice(0, spans * each), slice(spans * each, keys)
    x_spans = x[..., within].reshape(*x.shape[:-1], spans, each, copy=False).swapaxes(-2, -3)
    y_spans = y[..., within, :].reshape(*y.shape[:-2], spans, each, y.shape[-1], copy=False)
    np.add.reduce(np.matmul(x_spans, y_spans), axis=-3, out=out)
    if spans * each < keys:
        out += np.matmul(x[..., rest], y[..., rest, :])
    return out
