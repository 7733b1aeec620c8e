"""Rows of attention that are independent, also of NaN and infinity in values that other queries see.

In the product of weights and values, a weight of 0 times NaN is NaN, which would reach queries that do not see the value.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from .attention import upcast
from .problem import AttentionProblem
from .state import AttentionState


def independent_rows(p: AttentionProblem, attend: Callable[[AttentionProblem], AttentionState]) -> AttentionState:
    """Return attention in which NaN and infinity in a value reach only the queries that give it a weight above 0.

    ``attend`` computes attention with 0 in their place, and with two further values for each: 1 where it was +inf or NaN, and 1
    where it was -inf or NaN. A query sees one if its result is above 0.
    """
    xp, width = p.xp, p.value.shape[-1]
    value = upcast(p, p.value)
    nan = xp.isnan(value)
    above, below = nan | (value == math.inf), nan | (value == -math.inf)
    values = [xp.where(above | below, 0, value), *(xp.astype(x, value.dtype) for x in (above, below))]
    out, lse = attend(p.with_arrays(p.query, p.key, xp.concat(values, axis=-1)))
    up, down = (out[..., at * width : (at + 1) * width] > 0 for at in (1, 2))
    out = xp.where(down, -math.inf, xp.where(up, math.inf, out[..., :width]))
    return AttentionState(xp.where(up & down, math.nan, out), lse)
