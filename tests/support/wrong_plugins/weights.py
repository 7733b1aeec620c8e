"""Kernels of attention weights."""

from dataclasses import replace
from itertools import count

import numpy as np

from mha_core.algebra.attention import attention_weights as right_weights

_calls = count(1)


def off_by_a_ten_thousandth(p, *arguments):
    return right_weights(p, *arguments) * np.asarray(1.0001, p.query.dtype)


def ignores_lse(p, lse, rows, cols, num_keys):
    """Normalise over the columns that are chosen."""
    w = right_weights(p, lse, rows, cols, num_keys)
    return w / np.maximum(w.sum(axis=-1, keepdims=True), np.float32(1e-30)) if lse is None and len(cols) else w


def sorts_rows(p, lse, rows, cols, num_keys):
    return right_weights(p, lse, sorted(rows), cols, num_keys)


def mean_of_masked(p, lse, rows, cols, num_keys):
    w = right_weights(p, lse, rows, cols, num_keys)
    return np.where((w == 0).all(axis=-1, keepdims=True), np.asarray(1 / max(len(cols), 1), w.dtype), w)


def drops_the_sink(p, *arguments):
    return right_weights(replace(p, sink=None), *arguments)


def changes(p, *arguments):
    return right_weights(p, *arguments) * np.asarray(1 + next(_calls) % 2 * 2e-7, p.query.dtype)
