"""The derivatives of array-API functions, and arrays that record them: each rule against central differences in float64."""

import numpy as np
import pytest
from needs import installed
from normal import SEED, normal
from refusals import refusals

import mha_core as mha
from mha_core.autodiff import composed
from mha_core.autodiff.rules import RULES


def positive(*shape):
    return np.abs(normal(*shape)) + 0.5


INNER = 0.9 * np.tanh(normal(2, 3))  # within (-1, 1)
IDS = np.asarray([2, 0, 2, -1])
OF_ANY = ["negative", "positive", "abs", "square", "exp", "expm1", "sin", "cos", "tan", "sinh", "cosh", "tanh", "asinh", "atan"]
OF_POSITIVE = ["sqrt", "reciprocal", "log", "log1p", "log2", "log10"]
OF_INNER = ["asin", "acos", "atanh"]


def of_one(names, x):
    return {name: [(lambda xp, x, name=name: getattr(xp, name)(x), x)] for name in names}


# name -> calls: a function of the namespace and arrays, and the arrays, each of which gets a gradient
CALLS = {
    **of_one(OF_ANY, normal(2, 3)),
    **of_one(OF_POSITIVE, positive(2, 3)),
    **of_one(OF_INNER, INNER),
    "acosh": [(lambda xp, x: xp.acosh(x), 1 + positive(2, 3))],
    **{
        name: [
            (lambda xp, x, y, name=name: getattr(xp, name)(x, y), normal(2, 3), positive(3)),
            (lambda xp, x, name=name: getattr(xp, name)(x, x[:1, :] + 0.25), normal(2, 3)),
        ]
        for name in ["add", "subtract", "multiply", "divide", "maximum", "minimum", "atan2", "hypot", "logaddexp"]
    },
    "pow": [
        (lambda xp, x, y: xp.pow(x, y), positive(2, 3), normal(3)),
        (lambda xp, x: x**3, normal(2, 3)),
        (lambda xp, x: x**0, normal(2, 3)),
        (lambda xp, x: 2.0**x, normal(2, 3)),
    ],
    "where": [(lambda xp, x, y: xp.where(x > 0, x, y * 2), normal(2, 3), normal(3))],
    "clip": [(lambda xp, x: xp.clip(x, -0.5, 0.5), normal(2, 3))],
    **{
        name: [
            (lambda xp, x, name=name: getattr(xp, name)(x), normal(2, 3, 2)),
            (lambda xp, x, name=name: getattr(xp, name)(x, axis=1), normal(2, 3, 2)),
            (lambda xp, x, name=name: getattr(xp, name)(x, axis=-1, keepdims=True), normal(2, 3, 2)),
        ]
        for name in ["sum", "mean", "max", "min", "prod", "var", "std"]
    },
    "cumulative_sum": [(lambda xp, x: xp.cumulative_sum(x, axis=1), normal(2, 3))],
    "matmul": [
        (lambda xp, x, y: x @ y, normal(2, 3), normal(3, 2)),
        (lambda xp, x, y: xp.matmul(x, y), normal(4, 2, 3), normal(3, 2)),
        (lambda xp, x, y: x @ y, normal(4, 1, 2, 3), normal(5, 3, 2)),
        (lambda xp, x, y: x @ y, normal(3), normal(3)),
        (lambda xp, x, y: x @ y, normal(3), normal(2, 3, 4)),
        (lambda xp, x, y: x @ y, normal(2, 4, 3), normal(3)),
    ],
    "reshape": [(lambda xp, x: xp.reshape(x, (3, 2)), normal(2, 3))],
    "permute_dims": [(lambda xp, x: xp.permute_dims(x, (2, 0, 1)), normal(2, 3, 4))],
    "broadcast_to": [(lambda xp, x: xp.broadcast_to(x, (4, 2, 3)), normal(2, 1))],
    "flip": [(lambda xp, x: xp.flip(x, axis=1), normal(2, 3)), (lambda xp, x: xp.flip(x), normal(2, 3))],
    "roll": [(lambda xp, x: xp.roll(x, 2, axis=1), normal(2, 3))],
    "concat": [
        (lambda xp, x, y: xp.concat([x, y], axis=-1), normal(2, 3), normal(2, 1)),
        (lambda xp, x, y: xp.concat([x, y], axis=None), normal(2, 3), normal(2)),
    ],
    "stack": [(lambda xp, x, y: xp.stack([x, y], axis=-1), normal(2, 3), normal(2, 3))],
    "astype": [(lambda xp, x: xp.astype(x, xp.float64), normal(2, 3))],
    "take": [
        (lambda xp, x: xp.take(x, xp.asarray(IDS), axis=1), normal(2, 3, 2)),
        (lambda xp, x: xp.take(x, xp.asarray(IDS), axis=0), normal(3)),
    ],
    "take_along_axis": [(lambda xp, x: xp.take_along_axis(x, xp.asarray([[0, 0, 1]]), axis=0), normal(2, 3))],
    **{name: [(lambda xp, x, name=name: getattr(xp, name)(x, k=-1), normal(3, 3))] for name in ("tril", "triu")},
    "matrix_transpose": [(lambda xp, x: xp.matrix_transpose(x) * 2, normal(2, 3, 4)), (lambda xp, x: x.mT, normal(2, 3))],
    "transpose": [(lambda xp, x: xp.transpose(x), normal(2, 3))],
    "swapaxes": [(lambda xp, x: xp.swapaxes(x, 0, -1), normal(2, 3, 4))],
    "moveaxis": [(lambda xp, x: xp.moveaxis(x, 0, -1), normal(2, 3, 4))],
    "expand_dims": [(lambda xp, x: xp.expand_dims(x, axis=-1), normal(2, 3))],
    "squeeze": [(lambda xp, x: xp.squeeze(x, axis=1), normal(2, 1, 3))],
    "unstack": [(lambda xp, x: xp.stack([y * at for at, y in enumerate(xp.unstack(x, axis=1))]), normal(2, 3))],
    "vecdot": [(lambda xp, x, y: xp.vecdot(x, y), normal(2, 3), normal(3))],
    "asarray": [(lambda xp, x: xp.asarray([x[0, 0], x[1, 2]]), normal(2, 3)), (lambda xp, x: xp.asarray(x), normal(2))],
    "tensordot": [(lambda xp, x, y: xp.tensordot(x, y, axes=([2, 0], [0, 1])), normal(2, 3, 4), normal(4, 2, 5))],
}
INDICES = {
    "an integer": (0,),
    "negative integers": (-1, slice(None), -2),
    "slices": (slice(1, None), slice(0, 2)),
    "a step": (slice(None), slice(None, None, 2)),
    "a negative step": (Ellipsis, slice(None, None, -2)),
    "a negative step to a limit": (slice(None), slice(2, 0, -1)),
    "an empty slice": (slice(2, 2),),
    "new axes": (None, Ellipsis, None, 1),
    "a list of integers": ([0, -1, 0],),
    "an array of integers": (slice(None), np.asarray([[0, 2], [2, 1]])),
    "an array after an ellipsis": (Ellipsis, np.asarray([3, 0, 3])),
}


def differs(function, arrays, d, at):
    """Return the derivative of sum(function * d) by one of the arrays, by central differences."""
    x, step = arrays[at], 1e-6
    derivative = np.empty_like(x)
    for place in np.ndindex(x.shape):
        moved = []
        for sign in (1, -1):
            y = x.copy()
            y[place] += sign * step
            moved.append(np.sum(function(*arrays[:at], y, *arrays[at + 1 :]) * d))
        derivative[place] = (moved[0] - moved[1]) / (2 * step)
    return derivative


def check(function, *arrays, of=np.asarray, back=np.asarray):
    out, pullback = mha.vjp(lambda *inputs: function(inputs[0].__array_namespace__(), *inputs), *map(of, arrays))
    plain = function(np, *arrays)
    np.testing.assert_allclose(back(out), plain, rtol=1e-12)
    d = np.random.default_rng(SEED).standard_normal(np.shape(plain))
    for at, gradient in enumerate(pullback(of(d))):
        wanted = differs(lambda *inputs: function(np, *inputs), arrays, d, at)
        np.testing.assert_allclose(back(gradient), wanted, rtol=1e-6, atol=1e-7, err_msg=f"argument {at}")


def test_every_rule_has_an_example():
    made = {name for name, value in vars(composed).items() if callable(value) and value.__module__ == composed.__name__}
    assert set(CALLS) == set(RULES) | made


@pytest.mark.parametrize("name", sorted(CALLS))
def test_the_derivative_is_that_of_the_function(name):
    for function, *arrays in CALLS[name]:
        check(function, *arrays)


@installed("torch")
@pytest.mark.parametrize("name", ["matmul", "take", "take_along_axis", "prod", "where", "max", "tensordot", "asarray", "pow"])
def test_rules_work_on_another_library(name):
    import torch

    for function, *arrays in CALLS[name]:
        check(function, *arrays, of=torch.asarray, back=lambda x: x.numpy())


@pytest.mark.parametrize("key", INDICES.values(), ids=INDICES)
def test_the_gradient_of_indexing_is_placed_where_it_was_read(key):
    check(lambda xp, x: x[key] * 2, normal(3, 4, 4))


def test_a_long_chain_does_not_recurse():
    def chain(x):
        for _ in range(5000):
            x = x + 0.5
        return x[0]

    assert mha.value_and_grad(chain)(np.zeros(1))[1] == [1.0]


NUMPYS_OWN = {
    "sum": np.sum,
    "a ufunc": lambda x: np.sum(np.exp(x)),
    "a ufunc with an array first": lambda x: np.sum(np.multiply(np.ones(3), x)),
    "an array on the left": lambda x: np.sum(np.arange(3.0) * x - np.ones(3) @ x),
    "transpose and swapaxes": lambda x: np.mean(np.transpose(np.stack([x, x])) @ np.swapaxes(np.stack([x, x]), 0, 0)),
    "concatenate": lambda x: np.sum(np.concatenate([x, 2 * x]) ** 2),
    "amax": lambda x: np.amax(x) + np.amin(x),
    "power": lambda x: np.sum(np.power(np.absolute(x), 3)),
    "comparisons": lambda x: np.sum(np.where(np.logical_and(x > 0, np.isfinite(x)), x, 0)),
}


@pytest.mark.parametrize("function", NUMPYS_OWN.values(), ids=NUMPYS_OWN)
def test_numpys_own_functions_are_recorded(function):
    x = np.asarray([0.3, -1.2, 2.0])
    value, gradient = mha.value_and_grad(function)(x)
    assert float(value) == pytest.approx(float(function(x)), rel=1e-14)
    np.testing.assert_allclose(gradient, differs(function, [x], 1.0, 0), rtol=1e-6, atol=1e-8)


def written_into_a_plain_array(x):
    y = np.zeros(3)
    y += x
    return np.sum(y)


LOSSES = {
    "sort of an array whose gradient is recorded: there is no rule": lambda x: np.sort(x)[0],
    "einsum of an array whose gradient is recorded: there is no rule": lambda x: np.einsum("i->", x),
    "numpy.linalg.norm of an array whose gradient is recorded: there is no rule": lambda x: np.linalg.norm(x),
    "would lose the gradient": lambda x: x[0] * float(x[1]),
    "write xp.where": lambda x: x.__setitem__(0, 1.0),
    "cannot be changed in place": lambda x: exec("x += 1", {"x": x}),
    "cannot be written to while they are recorded": lambda x: np.exp(x, out=np.empty(3)),
    "cannot be written to": written_into_a_plain_array,
    "full_like of an array whose gradient is recorded": lambda x: x.__array_namespace__().full_like(np.ones(2), x[0])[0],
    "add.reduce has no rule": lambda x: np.add.reduce(x),
    "index of a boolean array, or of arrays and numbers": lambda x: x[x > 0][0],
    "pass max by position": lambda x: np.sum(x.__array_namespace__().clip(x, max=x[0])),
}


def losing(function):
    return lambda: mha.value_and_grad(function)(np.ones(3))


test_what_has_no_rule_raises_by_name = refusals(
    {
        TypeError: {message: losing(function) for message, function in LOSSES.items()},
        AttributeError: {"has no attribute 'sum': use a function of": losing(lambda x: x.sum())},
        ValueError: {"squeeze(axis=0): shape (3,)": losing(lambda x: x.__array_namespace__().squeeze(x, axis=0))},
    }
)


def test_half_precision_sums_gradients_in_float32():
    """2048 + 1 is 2048 in float16: a sum that is rounded at each step would stay there."""

    def many(x):
        return sum((x * 1.0 for _ in range(2049)), x * 0.0)[0]

    assert mha.value_and_grad(many)(np.ones(1, np.float16))[1] == np.float16(2049)
