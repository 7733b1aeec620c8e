"""Attention in tiles of scores that stay in cache.

    t = scale q k^T / ln b      w = b^(t - m)      out = w^T v / sum w      lse = (m + log_b sum w) ln b

A tile is stored transposed, with a row for each key, so that maxima and sums run along queries. No m is needed if |q| |k|
bounds t (Cauchy-Schwarz): nothing can overflow then, and one pass over the tile is saved. Otherwise m is the running maximum
(Milakov and Gimelshein 2018, algorithm 3). The choice depends only on queries, keys and values that are seen.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from mha_core import Int8Rows
from mha_core.plugin import Tile

from ..scratch import for_blas, scratch
from .masks_and_biases import Heads
from .subproblem import Subproblem, longest_norm

_BOUND = 60.0  # scores with a smaller bound are exponentiated without subtracting m: sums of b^60 are far from overflow
_FEW = 16  # fewer queries than this are stored with a row for each query: loops along so few of them would be short
_HELD = 500  # results up to which np.matmul holds the interpreter lock, however many keys it sums over
_SHORT = 1 << 17  # multiplications that end before another thread could wake up
_LEAST = 2.0**-20  # a smaller sum of b^t comes from scores so low that b^t times a small value may lose precision


def attend(subproblem: Subproblem, heads: Heads, rows: range, tiles: list[Tile]) -> None:
    """Write ``out``, and ``lse`` if it is wanted, for some heads and queries."""
    query = _scaled_queries(subproblem, heads, rows)
    bound = _bound(subproblem, heads, query)
    sums = _Sums(subproblem, heads, query, rows, tiles, bound)
    if not sums.shifted and not sums.in_range():
        sums = _Sums(subproblem, heads, query, rows, tiles, math.inf)
    out, total = sums.out, sums.total
    if not total.all():  # rows that see no key
        out[(total == 0)[:, :, 0]] = 0
    rows_first = (*out.shape[:2], len(rows), subproblem.query.shape[2])  # (batch, key heads, rows, group)
    inverse = np.divide(1, total, out=np.zeros_like(total), where=total != 0).reshape(*rows_first, 1)
    to = subproblem.out[*heads, :, rows.start : rows.stop].transpose(0, 1, 3, 2, 4)
    np.multiply(out.reshape(*rows_first, -1), inverse, out=to, casting="unsafe")
    if subproblem.lse is not None:
        lse = np.log(total)
        if sums.shifted:
            lse += sums.top * subproblem.base.ln
        subproblem.lse[*heads, :, rows.start : rows.stop] = lse.reshape(rows_first).swapaxes(-1, -2)


def _scaled_queries(subproblem: Subproblem, heads: Heads, rows: range) -> np.ndarray:
    """Return queries times the scale, (batch, key heads, rows * group, D); the queries of a group are adjacent."""
    query = subproblem.query[*heads, :, rows.start : rows.stop].transpose(0, 1, 3, 2, 4)
    scaled = scratch("query", query.shape, subproblem.dtype)
    np.multiply(query, subproblem.scale, out=scaled, dtype=subproblem.dtype)
    return scaled.reshape(*query.shape[:2], -1, query.shape[-1])


def _bound(subproblem: Subproblem, heads: Heads, query: np.ndarray) -> float:
    """Upper bound on abs(t), by Cauchy-Schwarz; infinite if it is not worth computing, NaN if a query or key has NaN."""
    (*_, n, dim), num_keys = query.shape, subproblem.num_keys
    if subproblem.adds or n * num_keys < (n + num_keys) * dim:  # a pass over the scores costs less than the norms
        return math.inf
    if subproblem.softcap is None:
        bound = longest_norm(query, subproblem.dtype) * subproblem.longest_key(heads)
    else:
        bound = subproblem.softcap / subproblem.base.ln
    return bound if subproblem.sink is None else float(np.maximum(bound, np.abs(subproblem.sink[heads[1]]).max()))


class _Sums:
    """Sums over the keys of some tiles, with n = rows * group.

    out: sum w v, (batch, key heads, n, E). total: sum w, (batch, key heads, 1, n). shifted: whether m is subtracted.
    top: m, shaped as total, if shifted. few: whether tiles are stored with a row for each query.
    """

    def __init__(
        self, subproblem: Subproblem, heads: Heads, query: np.ndarray, rows: range, tiles: list[Tile], bound: float
    ) -> None:
        self.subproblem, self.heads, self.shifted = subproblem, heads, not bound < _BOUND
        self.few = query.shape[2] < _FEW
        shape, group = query.shape[:3], subproblem.query.shape[2]
        self.out = scratch("out", (*shape, subproblem.value.shape[-1]), subproblem.dtype)
        self.total, self.top = np.empty((2, *shape[:2], 1, shape[2]), dtype=subproblem.dtype)
        self.single = len(tiles) == 1 and tiles[0].rows == rows and subproblem.sink is None  # one tile is the whole sum
        self._begin(len(rows))
        for tile in tiles:
            span = slice((tile.rows.start - rows.start) * group, (tile.rows.stop - rows.start) * group)
            self._add(tile, query[:, :, span], span)

    def in_range(self) -> bool:
        """Return whether b^t without m was precise: no product overflowed, and no sum is so small that it lost precision."""
        low = np.minimum.reduce(self.total, axis=None, initial=math.inf, where=self.total != 0) < _LEAST
        return not low and bool(np.isfinite(self.out).all())

    def _begin(self, num_rows: int) -> None:
        """Set the sums before any key: 0, or the sink, which is a score without a value."""
        if self.shifted:
            self.top.fill(np.finfo(self.subproblem.dtype).min)
        if not self.single:
            self.out.fill(0)
            self.total.fill(0)
        if self.subproblem.sink is not None:
            sink = np.tile(self.subproblem.sink[self.heads[1]], num_rows)[None, :, None]  # (1, key heads, 1, rows * group)
            if self.shifted:
                np.maximum(self.top, sink, out=self.top)
                sink = sink - self.top
            self.total += self.subproblem.base.power(sink)

    def _add(self, tile: Tile, query: np.ndarray, span: slice) -> None:
        """Add a tile; ``span`` selects its queries among all n."""
        subproblem = self.subproblem
        value, scale = self._rows(subproblem.value, tile, "value")
        weights = self._scores(tile, query)
        out, total = self.out[:, :, span], self.total[..., span]
        if self.shifted:
            subproblem.hide(weights, self.heads, tile, -math.inf)
            self._shift(weights, out, total, self.top[..., span])
        else:
            subproblem.base.power(weights, out=weights)
            subproblem.hide(weights, self.heads, tile, 0.0)
        ones = np.ones((1, len(tile.cols)), dtype=subproblem.dtype)
        if self.single:
            np.matmul(ones, weights, out=total)
        else:
            total += np.matmul(ones, weights)
        if scale is not None:
            weights *= scale
        if self.single:
            _product(weights.swapaxes(-1, -2), value, out=out)
        else:
            out += _product(weights.swapaxes(-1, -2), value, out=scratch("more", out.shape, subproblem.dtype))

    def _rows(self, x: Any, tile: Tile, name: str) -> tuple[np.ndarray, np.ndarray | None]:
        """Return the keys or values of a tile, and the scales of their scores or weights, (batch, key heads, cols, 1), if any.

        Few queries have fewer scores with a key in int8 than it has features.
        """
        rows: Any = x[*self.heads, tile.cols.start : tile.cols.stop]
        is_scaled = self.few and isinstance(rows, Int8Rows)
        return for_blas(rows.values if is_scaled else rows, self.subproblem.dtype, name), rows.scale if is_scaled else None

    def _scores(self, tile: Tile, query: np.ndarray) -> np.ndarray:
        """Return t, (batch, key heads, cols, n), before masks."""
        subproblem, (*stack, n, _) = self.subproblem, query.shape
        key, scale = self._rows(subproblem.key, tile, "key")
        if self.few:
            rows = scratch("scores", (*stack, n, len(tile.cols)), subproblem.dtype)
            s = np.matmul(query, key.swapaxes(-1, -2), out=rows).swapaxes(-1, -2)
        else:
            s = scratch("scores", (*stack, len(tile.cols), n), subproblem.dtype)
            np.matmul(key, query.swapaxes(-1, -2), out=s)
        if scale is not None:
            s *= scale
        if subproblem.softcap is not None:
            np.tanh(s, out=s)
            s *= subproblem.softcap / subproblem.base.ln
        if subproblem.bias is not None:  # the base is e
            pairs = subproblem.pairs(s)
            pairs += subproblem.bias.view(self.heads, tile.rows, tile.cols)
        if subproblem.function is not None:  # likewise
            subproblem.function.apply(subproblem.pairs(s), self.heads, tile)
        return s

    def _shift(self, s: np.ndarray, out: np.ndarray, total: np.ndarray, top: np.ndarray) -> None:
        """Replace s by b^(s - m), with the new maximum m, and rescale the sums so far to it."""
        highest = np.maximum.reduce(s, axis=-2, keepdims=True)
        np.maximum(highest, top, out=highest)  # top is finite even where no key is seen yet
        if not self.single:
            earlier = self.subproblem.base.power(top - highest)
            total *= earlier
            out *= earlier.swapaxes(-1, -2)
        top[...] = highest
        s -= highest
        floor, least = self.subproblem.base.floor(s.dtype.char)
        floor = np.repeat(floor, s.shape[-2]).reshape(-1, 1) if self.few else np.repeat(floor, s.shape[-1])
        np.maximum(s, floor, out=s)  # with an array laid out like s: a single number takes four times as long
        self.subproblem.base.power(s, out=s)
        s -= least  # exactly 0 for what is hidden or far below the maximum


def _product(x: np.ndarray, y: np.ndarray, out: np.ndarray) -> np.ndarray:
    """x y, (..., n, keys) times (..., keys, width), in spans of keys if NumPy would hold the interpreter lock throughout."""
    spans, keys = _HELD // out.size + 1, x.shape[-1]
    if spans == 1 or keys * out.size < _SHORT:
        return np.matmul(x, y, out=out)
    each = keys // spans
    within, remainder = slice(0, spans * each), slice(spans * each, keys)
    x_spans = x[..., within].reshape(*x.shape[:-1], spans, each, copy=False).swapaxes(-2, -3)
    y_spans = y[..., within, :].reshape(*y.shape[:-2], spans, each, y.shape[-1], copy=False)
    np.add.reduce(np.matmul(x_spans, y_spans), axis=-3, out=out)
    if spans * each < keys:
        out += np.matmul(x[..., remainder], y[..., remainder, :])
    return out
