"""Attention over so few pairs that calling NumPy costs more than computing.

    w = e^(scale q k^T - m)      out = w v / sum w

Everything that depends on the signature only is prepared once; a call then makes as few NumPy calls as possible. No m is
needed if the sum of the squares of all scores is small, which one call computes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from mha_core.plugin import AttentionProblem, AttentionState

from .. import blas

_PAIRS = 1 << 13  # pairs of a query and a key, at most
_BOUND = 15.0**2  # scores with a smaller sum of squares need no m: e^15 times all but the largest values is finite
_HANDLED = frozenset({"lse", "causal", "window", "grouped_query", "value_dim"})

_dot, _vdot, _matmul, _multiply, _exp, _divide = np.dot, np.vdot, np.matmul, np.multiply, np.exp, np.divide
_sum: Any = np.add.reduce
_no_lse: Any = None


def prepare(p: AttentionProblem) -> Callable[..., AttentionState] | None:
    """Return a function of (query, key, value, sink) for all problems with this signature; None if tiles must compute them.

    It supports float32 and float64, few pairs, and no mask except a band in which every query sees some key.
    """
    pairs = math.prod(p.rows_shape) * p.key.shape[-2]
    if pairs > _PAIRS or p.query.dtype not in (np.float32, np.float64) or p.features - _HANDLED:
        return None
    if pairs * max(p.query.shape[-1], p.value.shape[-1]) > blas.SMALL:
        return None
    seen = _band(p)
    if seen is not None and not seen.any(axis=-1).all():
        return None
    if math.prod(p.rows_shape[:-1]) == 1 and seen is None and "lse" not in p.asked:
        return _one_head(p)
    return _heads(p, seen)


def _band(p: AttentionProblem) -> np.ndarray | None:
    """1 where a query sees a key and 0 elsewhere, (group * L, S); None if there is no band."""
    low, high = p.structure.band
    if low is high is None:
        return None
    distance = np.arange(p.key.shape[-2]) - np.arange(p.query.shape[-2])[:, None]
    seen = (distance >= (-math.inf if low is None else low)) & (distance <= (math.inf if high is None else high))
    return np.tile(seen, (p.num_groups, 1)).astype(p.query.dtype)


def _one_head(p: AttentionProblem) -> Callable[..., AttentionState]:
    """Return a function for one head. Two-dimensional products take half the time of those for a stack of matrices."""
    shape, scale = (*p.rows_shape, p.value.shape[-1]), p.scale
    queries, keys, values = (x.shape[-2:] for x in (p.query, p.key, p.value))
    ones = np.ones((keys[0], 1), dtype=p.query.dtype)
    all_ones = np.ones(queries[0] * values[1], dtype=p.query.dtype)
    as_stack = _heads(p, None)

    @np.errstate(all="ignore")  # NaN and infinity in, NaN and infinity out
    def compute(query: Any, key: Any, value: Any, sink: Any) -> AttentionState:
        s = _dot(_multiply(query.reshape(queries), scale), key.reshape(keys).T)
        if not _vdot(s, s) < _BOUND:
            return as_stack(query, key, value, sink)
        _exp(s, s)
        out = _dot(s, value.reshape(values))
        _divide(out, _dot(s, ones), out)
        if not math.isfinite(_vdot(out, all_ones)):
            return as_stack(query, key, value, sink)
        return AttentionState(out.reshape(shape), _no_lse)

    return compute


def _heads(p: AttentionProblem, seen: np.ndarray | None) -> Callable[..., AttentionState]:
    """Return a function for any number of heads, with or without a band and lse."""
    rows_shape, scale, wants_lse = p.rows_shape, p.scale, "lse" in p.asked
    shape = (*rows_shape, p.value.shape[-1])
    grouped = (*p.query.shape[:-3], p.key.shape[-3], p.num_groups * p.query.shape[-2], p.query.shape[-1])
    hidden = None if seen is None else seen == 0
    ones = np.ones(math.prod(shape), dtype=p.query.dtype)

    @np.errstate(all="ignore")
    def compute(query: Any, key: Any, value: Any, sink: Any) -> AttentionState:
        s = _matmul(_multiply(query, scale).reshape(grouped), key.mT)
        if _vdot(s, s) < _BOUND:
            w = _exp(s)
            if seen is not None:
                _multiply(w, seen, w)
            total, out = _sum(w, -1, None, None, True), _matmul(w, value)
            _divide(out, total, out)
            if math.isfinite(_vdot(out, ones)):
                return AttentionState(out.reshape(shape), np.log(total).reshape(rows_shape) if wants_lse else _no_lse)
        if hidden is not None:
            np.copyto(s, -math.inf, where=hidden)
        top = np.maximum.reduce(s, axis=-1, keepdims=True)
        s -= np.maximum(top, np.finfo(s.dtype).min)  # a whole row may be -inf
        _exp(s, s)
        total, out = _sum(s, -1, None, None, True), _matmul(s, value)
        lse = (np.log(total) + top).reshape(rows_shape) if wants_lse else _no_lse
        empty = total == 0  # rows whose scores are all -inf
        out[empty[..., 0]] = 0
        total[empty] = 1
        _divide(out, total, out)
        return AttentionState(out.reshape(shape), lse)

    return compute
