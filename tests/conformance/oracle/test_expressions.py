"""Expressions: what they are derived to, and the bounds on their errors."""

import numpy as np
import pytest

from mha_conformance.cases.functions import Draw, as_function, indices_of
from mha_conformance.oracle.expressions import Rounded, derivative, evaluated, op, reads_of
from mha_conformance.oracle.score_function import ScoreFunction

STEP = 1e-30
"""The step of a complex-step derivative."""


def drawn(seed):
    """Return a score function and random scores."""
    rng = np.random.default_rng(seed)
    draw = Draw(rng, rng, {"batch": 2, "head": 3, "key": 7}, "x", mixed=True)
    expression = draw.score()
    indices = indices_of(np.arange(5)[:, None], np.arange(7), (2,), 3)
    floats = {name: x for name, x in draw.arrays.items() if x.dtype.kind == "f"}
    others = {name: x for name, x in draw.arrays.items() if name not in floats}
    return ScoreFunction(expression, indices | others, floats), rng.normal(size=(2, 3, 5, 7)) * 3


def test_an_expression_is_written_as_python_is():
    expression = op("-", op("*", op("[]", "x 0", "head", op("%", "key", 3)), 0.5), op("abs", "score"))
    assert str(expression) == "((x 0[head, (key % 3)] * 0.5) - abs(score))"
    assert str(op("~", op("<", op("-", "query"), "key"))) == "~(-query < key)"
    function = as_function(op("&", op("<=", "key", "query"), op("[]", "x 0", "head")), ["x 0"])
    assert function(0, np.asarray([0, 1]), 4, 3, np.asarray([True, False])).tolist() == [True, False]


@pytest.mark.parametrize("seed", range(40))
def test_slopes_are_complex_step_derivatives(seed):
    function, scores = drawn(seed)
    slope = function.slope(scores, 0.0, 0.0).value
    assert np.allclose(slope, np.imag(function(scores + 1j * STEP)) / STEP, rtol=1e-10, atol=1e-12)
    assert np.abs(slope).max() <= 1
    d = np.random.default_rng(seed).normal(size=scores.shape)
    for name, x in function.arrays.items():
        terms = [(read, d * by.value) for read, by in function.slopes_of(name, scores, 0.0, 0.0)]
        direction = np.random.default_rng(seed + 1).normal(size=x.shape)
        moved = ScoreFunction(function.expression, function.indices, {**function.arrays, name: x + 1j * STEP * direction})
        expected = np.imag((moved(scores) * d).sum()) / STEP
        assert np.isclose((function.gradient(name, terms) * direction).sum(), expected, rtol=1e-9, atol=1e-11), name


@pytest.mark.parametrize("seed", range(40))
def test_errors_are_within_their_bounds(seed):
    function, scores = drawn(seed)
    narrow = {name: x.astype(np.float32) for name, x in function.arrays.items()}
    scores = scores.astype(np.float32)
    values = {**function.indices, **narrow, "score": scores}
    exact = ScoreFunction(function.expression, function.indices, {name: x.astype(float) for name, x in narrow.items()})
    bounded = exact.rounded(scores.astype(float), 0.0, 2.0**-24)
    assert (np.abs(evaluated(function.expression, values) - bounded.value) <= bounded.error).all()


def test_an_error_of_the_scores_passes_through():
    number = Rounded(np.asarray(2.0), 0.5, 0.0)
    assert (number + 1).error == (1 - number).error == abs(-number).error == 0.5
    assert (number * number).error == 2 * 2 * 0.5 + 0.5**2  # (2 + 0.5)^2 - 2^2
    assert (1 / number).value == 0.5 and (1 / number).error == 0.5 * 0.5 / 1.5  # 1 / 1.5 - 1 / 2


def test_a_place_that_occurs_twice_counts_once():
    read = op("[]", "x", "head")
    product = op("*", read, read)
    assert reads_of("x", product) == {read} and reads_of("y", product) == set()
    assert evaluated(derivative(product, read), {"x": np.asarray([3.0]), "head": 0}) == 6.0
    assert derivative(product, "score") == 0
