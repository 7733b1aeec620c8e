"""Gradients of attention in tiles of pairs that stay in cache (Dao 2023, algorithm 2: keys outside, queries inside).

    t = scale k q^T / ln b      w = b^(t - lse / ln b)      ds = w (v do^T - delta)
    dv = w do                   dk = scale ds q             dq = scale ds^T k

A tile has a row for each key, as in ``tiles``. Two passes over it are saved by one more feature in two of the products:
(k, -1) (q, lse)^T = k q^T - lse and (v, -1) (do, delta)^T = v do^T - delta. Where |q| |k| + |lse| is small, the exponentials of
all pairs are finite and normal, and masks multiply by 0 and 1. Elsewhere masked scores become -inf, and all are clamped.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Set
from typing import Any, NamedTuple

import numpy as np

from mha_core.plugin import Tile

from ..scratch import scratch
from .bias_gradients import BiasGradient, FunctionGradient
from .masks_and_biases import Heads
from .subproblem import Subproblem, longest_norm

_BOUND = 60.0  # a smaller |t| + |lse| needs no clamp: b^60 is finite, and b^-60 times a small gradient is not subnormal
_SAME = 1e-4  # a greater difference of lse and the sink is not rounding
_KEPT = 1 << 18  # numbers in an array that is kept for the next task


class _Queries(NamedTuple):
    """The arrays of all queries of some heads, which tiles read, (batch, key heads, rows * group, features)."""

    query: np.ndarray
    """q / ln b, or q / softcap; the last feature is lse / ln b."""
    d_out: np.ndarray
    """do; the last feature is delta."""
    clamps: bool
    """True if exponents must be clamped."""
    selects: bool
    """True if do, v or delta may have NaN or infinity, so that ds must be selected where w is 0."""


class HeadGradients:
    """The gradients of some heads of a subproblem, with respect to a span of keys.

    ``gradient`` is a subproblem of the same shapes: its query, key and value are written to; its out and lse are out, and d_lse
    or None. The gradients of all keys of the span are written, and those of queries added.
    """

    def __init__(
        self, subproblem: Subproblem, gradient: Subproblem, heads: Heads, wanted: Set[str], bias: BiasGradient | None
    ) -> None:
        self.subproblem, self.gradient, self.heads, self.wanted, self.bias = subproblem, gradient, heads, wanted, bias
        self.unit = subproblem.base.ln if subproblem.softcap is None else subproblem.softcap
        self.needs_scores = bias is not None or bool(wanted & {"query", "key"})
        self.queries = self._queries()

    def _queries(self) -> _Queries:
        s, g, heads = self.subproblem, self.gradient, self.heads
        query, d_out, out = (x[heads].transpose(0, 1, 3, 2, 4) for x in (s.query, s.out, g.out))
        assert s.lse is not None
        lse = s.lse[heads].swapaxes(-1, -2)
        stack, dim, width = query.shape[:-1], query.shape[-1], d_out.shape[-1]
        q, do = _room("queries", (*stack, dim + 1), s.dtype), _room("d_out", (*stack, width + 1), s.dtype)
        np.multiply(query, 1 / self.unit, out=q[..., :-1], dtype=s.dtype)
        np.multiply(lse, 1 / s.base.ln, out=q[..., -1])
        do[..., :-1] = d_out
        sink = None if s.sink is None else s.sink[heads[1], None]
        d_lse = None if g.lse is None else g.lse[heads].swapaxes(-1, -2)
        finite = write_delta(do[..., :-1], out, lse, sink, d_lse, do[..., -1])
        if (empty := lse == -math.inf).any():
            q[empty, -1] = 0
            do[empty] = 0
        q, do = (x.reshape(*stack[:2], -1, x.shape[-1]) for x in (q, do))
        return _Queries(q, do, clamps=not self._bound(q) < _BOUND, selects=not finite)

    def _bound(self, q: np.ndarray) -> float:
        """Upper bound on abs(t) + abs(lse / ln b), by Cauchy-Schwarz; infinite with a bias, NaN if a number is NaN."""
        s = self.subproblem
        if s.adds:
            return math.inf
        if s.softcap is None:
            bound = longest_norm(q[..., :-1], s.dtype) * s.longest_key(self.heads) * abs(s.scale * self.unit)
        else:
            bound = s.softcap / s.base.ln
        return bound + float(np.abs(q[..., -1]).max())

    def add(self, cols: range, tiles: list[Tile], single: bool) -> None:
        """Compute the gradients of the keys ``cols``, whose tiles are given; ``single``: no other keys or tiles exist."""
        s, g, heads, wanted = self.subproblem, self.gradient, self.heads, self.wanted
        d_key, d_value = (x[heads][:, :, cols.start : cols.stop] for x in (g.key, g.value))
        if not tiles:
            for name, d in (("key", d_key), ("value", d_value)):
                if name in wanted:
                    d.fill(0)
            return
        key, value = (x[heads][:, :, cols.start : cols.stop] for x in (s.key, s.value))
        k, v = (scratch(name, (*x.shape[:-1], x.shape[-1] + 1), s.dtype) for name, x in (("keys", key), ("values", value)))
        np.multiply(key, s.scale * self.unit, out=k[..., :-1], dtype=s.dtype)
        v[..., :-1] = value
        k[..., -1] = v[..., -1] = -1
        sum_key = scratch("d_key", key.shape, s.dtype)
        group = s.query.shape[2]
        for at, tile in enumerate(tiles):
            span = slice(tile.rows.start * group, tile.rows.stop * group)
            q, do = self.queries.query[:, :, span], self.queries.d_out[:, :, span]
            w, slope, pull = self._weights(tile, k, q)
            if "value" in wanted:
                _add_product(w, do[..., :-1], d_value, fresh=at == 0)
            if not self.needs_scores:
                continue
            ds = self._d_scores(tile, v, do, w)
            if pull is not None:
                ds = self._pulled(pull, ds)
            if slope is not None:
                ds *= slope
            if "key" in wanted:
                _add_product(ds, q[..., :-1], sum_key, fresh=at == 0)
            if "query" in wanted:
                self._add_to_query(tile.rows, ds, k[..., :-1], fresh=single)
        if "key" in wanted:
            np.multiply(sum_key, s.scale * self.unit**2, out=d_key)

    def _weights(
        self, tile: Tile, k: np.ndarray, q: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray | None, Callable[..., Any] | None]:
        """Return w, (batch, key heads, cols, rows * group), exactly 0 where a pair does not attend, and slopes.

        These are the softcap's, and the pullback of the score function.
        """
        s, heads, slope, pull = self.subproblem, self.heads, None, None
        shape = (*k.shape[:3], q.shape[2])
        w = scratch("weights", shape, s.dtype)
        if s.softcap is None and s.function is None:
            np.matmul(k, q.swapaxes(-1, -2), out=w)
        else:
            np.matmul(k[..., :-1], q[..., :-1].swapaxes(-1, -2), out=w)
            if s.softcap is not None:
                np.tanh(w, out=w)
                slope = np.multiply(w, w, out=scratch("slope", shape, s.dtype))
                np.subtract(1, slope, out=slope)
                w *= s.softcap / s.base.ln
            if s.function is not None:
                scores = s.pairs(w).copy()  # the pullback may read them
                value, pull = s.function.pullback(scores, heads, tile, of_arrays=isinstance(self.bias, FunctionGradient))
                s.pairs(w)[...] = value
            w -= np.ascontiguousarray(q[..., None, :, -1])
        if s.bias is not None:  # the base is e
            pairs = s.pairs(w)
            pairs += s.bias.view(heads, tile.rows, tile.cols)
        if not self.queries.clamps:
            s.base.power(w, out=w)
            s.hide(w, heads, tile, 0.0)
            return w, slope, pull
        s.hide(w, heads, tile, -math.inf)
        floor, least = s.base.floor(w.dtype.char)
        np.maximum(w, np.repeat(floor, w.shape[-1]), out=w)  # laid out like w: a single number takes four times as long
        s.base.power(w, out=w)
        w -= least  # exactly 0 for what is hidden or far below lse
        return w, slope, pull

    def _pulled(self, pull: Callable[..., Any], ds: np.ndarray) -> np.ndarray:
        """Return the gradient of the scores that a function received; add those of its arrays."""
        of_scores, of_arrays = pull(self.subproblem.pairs(ds))
        if isinstance(self.bias, FunctionGradient):
            self.bias.add_arrays(of_arrays)
        return np.ascontiguousarray(of_scores).reshape(ds.shape)

    def _d_scores(self, tile: Tile, v: np.ndarray, do: np.ndarray, w: np.ndarray) -> np.ndarray:
        """Return ds = w (v do^T - delta); add it to the bias's gradient."""
        ds = scratch("d_scores", w.shape, w.dtype) if self.bias is None else self.bias.room(w.shape, w.dtype)
        np.matmul(v, do.swapaxes(-1, -2), out=ds)
        ds *= w
        if self.queries.selects:
            np.copyto(ds, 0, where=w == 0)
        if self.bias is not None:
            self.bias.add(self.heads, tile, ds)
        return ds

    def _add_to_query(self, rows: range, ds: np.ndarray, k: np.ndarray, *, fresh: bool) -> None:
        """dq += scale ds^T k, for some queries."""
        to = self.gradient.query[self.heads][..., rows.start : rows.stop, :].transpose(0, 1, 3, 2, 4)
        if to.shape[3] == 1:
            _add_product(ds.swapaxes(-1, -2), k, to[:, :, :, 0], fresh=fresh)
            return
        more = scratch("more", (*to.shape[:2], ds.shape[-1], to.shape[-1]), ds.dtype)
        np.matmul(ds.swapaxes(-1, -2), k, out=more)
        if fresh:
            to[...] = more.reshape(to.shape)
        else:
            to += more.reshape(to.shape)


def write_delta(
    d_out: np.ndarray, out: np.ndarray, lse: np.ndarray, sink: np.ndarray | None, d_lse: np.ndarray | None, delta: np.ndarray
) -> bool:
    """Write delta = d_out . out - d_lse, and return whether it is finite; ``d_out`` becomes 0 for queries that see only a sink.

    The shapes are (..., E) for d_out and out; those of the others, without this axis, broadcast.
    """
    np.vecdot(d_out, out, out=delta, dtype=delta.dtype)
    if d_lse is not None:
        delta -= d_lse
    finite = bool(np.isfinite(np.add.reduce(delta, axis=None)))
    if not finite and sink is not None:  # such a query has out = 0 and lse = sink, and its d_out may hold anything
        blind = (np.abs(lse - sink) <= _SAME * (1 + np.abs(sink))) & ~out.any(axis=-1) & ~np.isfinite(delta)
        d_out[blind] = 0
        delta[blind] = 0 if d_lse is None else -d_lse[blind]
    return finite


def _add_product(x: np.ndarray, y: np.ndarray, to: np.ndarray, *, fresh: bool) -> None:
    """to = x y if ``fresh``, otherwise to += x y."""
    if fresh:
        np.matmul(x, y, out=to)
    else:
        to += np.matmul(x, y, out=scratch("more", to.shape, to.dtype))


def _room(name: str, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """Return memory for a whole task, which is kept for the next one if it is small."""
    return scratch(name, shape, dtype) if math.prod(shape) <= _KEPT else np.empty(shape, dtype=dtype)
