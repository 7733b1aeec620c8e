"""Kernels that remember: what one call leaves behind, another finds."""

import itertools

import numpy as np

from mha_core.plugin import AttentionState

from .dense import Dense, scores
from .dense import right as right

_scratch = {}


def _shared(p, query, key):
    """Scores are made in an array that every call of the same shape uses, whatever thread it comes from."""
    s = scores(p, query, key)
    scratch = _scratch.setdefault((s.shape, s.dtype), np.empty_like(s))
    for row in range(s.shape[-2]):  # a row at a time, and so with time for another thread
        scratch[..., row, :] = s[..., row, :]
    return scratch


shared_scratch = Dense(scores=_shared)

_calls = itertools.count()


def different_each_time(p):
    """The last bit of the output turns with every other call, as where sums are made in whatever order threads end."""
    out, lse = right(p)
    return AttentionState(np.nextafter(out, np.inf).astype(out.dtype) if next(_calls) % 2 else out, lse)


_kept = {}


def keeps_the_first_answer(p):
    """A cache by shape alone: right for the first call of a shape."""
    key = (p.rows_shape, p.key.shape, p.value.shape, p.query.dtype, p.features)
    return _kept.setdefault(key, right(p))
