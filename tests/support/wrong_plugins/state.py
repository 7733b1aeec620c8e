"""Kernels that keep state from one call to another."""

import itertools

import numpy as np

from .dense import Dense, changed, scores
from .dense import right as right

_scratch = {}


def _shared(p, query, key):
    """Write scores into an array that all calls of one shape share, from any thread."""
    s = scores(p, query, key)
    scratch = _scratch.setdefault((s.shape, s.dtype), np.empty_like(s))
    for row in range(s.shape[-2]):  # row by row, which leaves time for another thread
        scratch[..., row, :] = s[..., row, :]
    return scratch


shared_scratch = Dense(scores=_shared)

_calls = itertools.count()


@changed
def different_each_time(p, out, lse):
    """Change the last bit of the output in every other call, as sums in the order in which threads finish would."""
    return np.nextafter(out, np.inf).astype(out.dtype) if next(_calls) % 2 else out, lse


_kept = {}


def keeps_the_first_answer(p):
    """Cache results by shape alone: only the first call of a shape is right."""
    key = (p.rows_shape, p.key.shape, p.value.shape, p.query.dtype, p.features)
    return _kept.setdefault(key, right(p))
