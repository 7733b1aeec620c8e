"""Random programs with gradients inside gradients, over arrays that outer ones record: equal to torch's, or a named error."""

import random
from collections import Counter

import numpy as np
import pytest
import torch

import mha_core as mha

pytestmark = pytest.mark.full
COUNT = 15000  # programs
UNARY = ["sin", "tanh", "cos", "square", "flip", "cumsum", "negative"]
BINARY = ["+", "*", "-", "/", "maximum", "where", "@"]
MATRIX = np.random.default_rng(0).normal(size=(3, 3))
NAMED = ["an array whose gradient is recorded meets one of a value_and_grad or vjp inside it", "a gradient is recorded already"]
NESTED = ["value", "gradient", "both", "vjp", "twice", "late"]


def program(draw, depth, nested, variables):
    """Return a program of vectors: a tuple with the name of a node, and its parts."""
    if depth == 0:
        return ("variable", draw.randrange(variables)) if draw.random() < 0.8 else ("constant", draw.uniform(-2, 2))
    kind = draw.random()
    if kind < 0.35 and nested:
        at = program(draw, draw.randrange(2), nested - 1, variables) if draw.random() < 0.3 else ("constant", draw.random())
        return draw.choice(NESTED), program(draw, depth - 1, nested - 1, variables + 1), at
    if kind < 0.6:
        return draw.choice(UNARY), program(draw, depth - 1, nested, variables)
    if kind < 0.7:
        return "sum", program(draw, depth - 1, nested, variables)
    return draw.choice(BINARY), *(program(draw, depth - 1, nested, variables) for _ in range(2))


class Numpy:
    """Computes with NumPy, and gradients by the tape."""

    xp = np

    def array(self, x):
        return np.asarray(x, dtype=np.float64)

    def value_and_gradient(self, function, at):
        return mha.value_and_grad(lambda x: np.sum(function(x)))(at)

    def vjp(self, function, at):
        _, pullback = mha.vjp(function, at)
        return lambda d_out: pullback(d_out)[0]


class Torch:
    """Computes with torch, and gradients by its own composable transforms."""

    xp = torch

    def array(self, x):
        return torch.asarray(np.asarray(x), dtype=torch.float64)

    def value_and_gradient(self, function, at):
        gradient, value = torch.func.grad_and_value(lambda x: torch.sum(function(x)))(at)
        return value, gradient

    def vjp(self, function, at):
        _, pullback = torch.func.vjp(function, at)
        return lambda d_out: pullback(d_out)[0]


def evaluate(node, by, variables):
    kind, *parts = node
    xp, ones = by.xp, by.array(np.ones(3))
    if kind == "variable":
        return variables[parts[0]]
    if kind == "constant":
        return by.array([parts[0], 1.0, -0.5])
    if kind in NESTED:
        at = evaluate(parts[1], by, variables)

        def function(x):
            return evaluate(parts[0], by, [*variables, x])

        if kind in ("value", "gradient", "both"):
            value, gradient = by.value_and_gradient(function, at)
            return {"value": value * ones, "gradient": gradient, "both": value * gradient}[kind]
        pullback = by.vjp(function, at)
        first = pullback(variables[-1] if kind == "late" else by.array([1.0, 2.0, -1.0]))
        return first + 2 * pullback(ones) if kind == "twice" else first
    first, *second = (evaluate(part, by, variables) for part in parts)
    match kind:
        case "sum":
            return xp.sum(first) * ones
        case "flip":
            return xp.flip(first, (0,))
        case "cumsum":
            return xp.cumsum(first, 0)
        case "+":
            return first + second[0]
        case "-":
            return first - second[0]
        case "*":
            return first * second[0]
        case "/":
            return first / (2 + second[0] * second[0])
        case "@":
            return by.array(MATRIX) @ first + second[0]
        case "where":
            return xp.where(first > 0.1, first, second[0] * 0.5)
        case "maximum":
            return xp.maximum(first, second[0])
    return getattr(xp, kind)(first)


def outcome(node, start):
    """Return the value and gradient of a program's sum by the tape, or the error that names why there is none."""
    by = Numpy()
    try:
        return by.value_and_gradient(lambda x: evaluate(node, by, [x]), by.array(start))
    except TypeError as error:
        if named := [name for name in NAMED if name in str(error)]:
            return named[0]
        raise


@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning")
def test_gradients_inside_gradients_are_right_or_a_named_error():
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    draw, outcomes = random.Random(seed), Counter()
    for _ in range(COUNT):
        node, start = program(draw, draw.randrange(1, 6), 2, 1), [draw.uniform(-2, 2) for _ in range(3)]
        try:
            received = outcome(node, start)
        except Exception:
            print(node, start)
            raise
        outcomes[received if isinstance(received, str) else "nested" if any(x in str(node) for x in NESTED) else "plain"] += 1
        if isinstance(received, str):
            continue
        by = Torch()
        expected = by.value_and_gradient(lambda x: evaluate(node, by, [x]), by.array(start))  # noqa: B023
        for ours, theirs in zip(received, expected, strict=True):
            scale = 1 + np.abs(theirs.numpy()).max()
            if np.isfinite(scale) and scale < 1e9:
                assert np.abs(np.asarray(ours) - theirs.numpy()).max() <= 1e-9 * scale, (node, start, ours, theirs)
    print(outcomes)
    assert len(outcomes) == 4 and min(outcomes.values()) > COUNT / 100, outcomes
