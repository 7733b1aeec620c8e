"""Calls of layers whose only mask, or bias, is a function that reads all four indices of a pair.

A layer may be computed part by part, for example some sequences at a time. A function must see the numbers of the whole call.
"""

from __future__ import annotations

import numpy as np

import mha_core as mha

from ..oracle.expressions import evaluated, op
from .functions import as_function, indices_of
from .layer_problem import PLAIN_ROW, LayerProblem, plain_layer_problem
from .masks import AnyMask
from .options import heads_of

KINDS = ("mask", "score")
SIZES = ((3, 5), (24, 40), (7, 130))
"""Numbers of sequences and of their tokens: few and many, which a kernel may compute together, apart, or in groups."""
_NUMBER = op("+", op("*", "batch", 3), op("+", op("*", "head", 2), op("+", "query", "key")))
_MASK = op("!=", op("%", _NUMBER, 5), 0)
_TABLE = "table of scores"
_SCORE = op("+", "score", op("[]", _TABLE, op("%", _NUMBER, 7)))


def function_layer(layer: str, kind: str, size: tuple[int, int], rng: np.random.Generator) -> LayerProblem:
    """Draw a call of a layer operation with a function of a kind, over this number of sequences and of tokens of each."""
    sequences, tokens = size
    problem = plain_layer_problem(layer, rng, batch=((sequences,),) * 3, queries=tokens)
    assert problem.options is not None
    indices = indices_of(np.arange(tokens)[:, None], np.arange(tokens), (sequences,), heads_of(PLAIN_ROW))
    if kind == "mask":
        function = as_function(_MASK, [])
        problem.options.add_mask(AnyMask(lambda array: mha.mask_function(function), evaluated(_MASK, indices)))
    else:
        problem.options.add_score_function(_SCORE, {_TABLE: rng.normal(size=7)}, indices)
        problem.floats |= problem.options.floats
    return problem
