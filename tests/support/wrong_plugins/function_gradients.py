"""Gradients of attention with a score function: a right kernel, and wrong ones whose function has other gradients."""

from dataclasses import dataclass, replace

import numpy as np

from mha_core.algebra.attention_vjp import attention_vjp as right
from mha_core.autodiff.score_function import ScoreFunction


def _with(change):
    """Return a kernel in which ``change(pull, d)`` returns the gradients of the scores and of the arrays."""

    @dataclass(frozen=True, eq=False)
    class Changed(ScoreFunction):
        def pullback(self, scores, grid, *, of_arrays):
            value, pull = super().pullback(scores, grid, of_arrays=of_arrays)
            return value, lambda d: change(pull, d)

    def kernel(p, *arguments):
        changes = {"bias": Changed(p.bias.function, p.bias.inputs)} if isinstance(p.bias, ScoreFunction) else {}
        return right(replace(p, **changes), *arguments)

    return kernel


def _of_the_first_head(pull, d):
    return pull(d)[0], pull(np.where(np.arange(d.shape[-3])[:, None, None] == 0, d, 0))[1]


def _without_the_last_array(pull, d):
    of_scores, (*others, last) = pull(d)
    return of_scores, (*others, None if last is None else 0 * last)


arrays_of_the_first_head = _with(_of_the_first_head)
last_array_forgotten = _with(_without_the_last_array)
slope_forgotten = _with(lambda pull, d: (d, pull(d)[1]))
