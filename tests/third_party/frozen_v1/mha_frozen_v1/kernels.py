"""Kernels in plain NumPy, written apart from mha-core's algebra. ``calls`` is a log, for the tests."""

import math

import numpy

from mha_core.plugin import AttentionProblem, AttentionState

from .arrays import FrozenArray

calls = []


def attention(problem: AttentionProblem) -> AttentionState:
    """softmax(scale q k^T) v over the keys within the band, one query after another, in float64."""
    calls.append("attention")
    query, key, value = (x.data.astype(numpy.float64) for x in (problem.query, problem.key, problem.value))
    low, high = problem.structure.band
    assert low is None, "a window was not declared"
    out = numpy.zeros((*problem.rows_shape, value.shape[-1]))
    lse = numpy.full(problem.rows_shape, -numpy.inf)
    for at in numpy.ndindex(problem.rows_shape):
        *head, row = at
        keys, values = key[tuple(head)], value[tuple(head)]
        seen = len(keys) if high is None else min(max(row + high + 1, 0), len(keys))
        if seen:
            scores = keys[:seen] @ query[at] * problem.scale
            weights = numpy.exp(scores - scores.max())
            out[at] = weights @ values[:seen] / weights.sum()
            lse[at] = scores.max() + math.log(weights.sum())
    return AttentionState(FrozenArray(out.astype(problem.query.dtype)), FrozenArray(lse.astype(numpy.float32)))


def gelu(x, *, approximate):
    """x (1 + erf(x / sqrt(2))) / 2."""
    assert approximate == "none", "the tanh form was refused"
    calls.append("gelu")
    numbers = [float(a) for a in x.data.flat]
    shares = [0.5 * math.erfc(-a / math.sqrt(2)) for a in numbers]
    answers = [a * share if share else 0.0 for a, share in zip(numbers, shares, strict=True)]  # -inf * 0 is 0 here
    return FrozenArray(numpy.asarray(answers).reshape(x.shape).astype(x.dtype))


def silu(x):
    """x / (1 + exp(-x)), on NumPy's own arrays."""
    calls.append("silu")
    y = x.astype(numpy.float64)
    e = numpy.exp(-numpy.abs(y))
    return (y * numpy.where(y < 0, e, 1) / (1 + e)).astype(x.dtype)
