"""Gradients of a piece after another pullback: one that returns the first gradients again is wrong."""

import numpy as np
import pytest

import mha_core as mha
from mha_conformance.cases.piece_gradients import piece_gradient_problem
from mha_conformance.find import find
from mha_conformance.judge.held import judge_of

ROW = {"rows": (3,), "width": 4, "spread": 1.0, "towards": 1.0, "layout": "contiguous", "layout of d": "contiguous"}
vjp = mha.vjp


def with_one_gradient(function, *arguments, **options):
    """Return the result of ``mha.vjp``, with a pullback that returns the gradients of its first call again."""
    out, pullback = vjp(function, *arguments, **options)
    first = []

    def pull(d):
        if not first:
            first.append(pullback(d))
        return first[0]

    return out, pull


def judge(pulls):
    problem = piece_gradient_problem("relu", ROW | {"pulls": pulls}, np.random.default_rng(0))
    return judge_of(find("numpy", None, ["float64"]), "float64").of("relu_vjp", "algebra").judge(problem)


def test_the_gradients_of_the_first_pullback_again_are_wrong(monkeypatch):
    assert judge("once") and judge("after another")
    monkeypatch.setattr(mha, "vjp", with_one_gradient)
    assert judge("once")
    with pytest.raises(AssertionError, match="within"):
        judge("after another")
