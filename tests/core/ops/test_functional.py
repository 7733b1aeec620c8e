"""Functional operations: norms, activations, positions, embeddings, linear maps."""

import math

import mpmath
import numpy as np
import pytest
import torch
from refusals import refusals

import mha_core as mha
from mha_core.algebra import activations
from mha_core.dispatch.backend import load
from mha_core.ops.functional import ACTIVATIONS

WIDE = np.concatenate([np.linspace(-40, 40, 4001), np.geomspace(1e-30, 1, 200), -np.geomspace(1e-30, 1, 200), [0.0]])


def phi(x):
    """The distribution function of the normal distribution, without cancellation."""
    return np.asarray([0.5 * math.erfc(-value / math.sqrt(2)) for value in np.ravel(x)]).reshape(np.shape(x))


def test_gelu_is_exact_in_float64(backend):
    got = backend.to_numpy(mha.gelu(backend.from_numpy(WIDE)))
    exact = WIDE * phi(WIDE)
    np.testing.assert_allclose(got, exact, rtol=1e-12, atol=1e-300)
    assert (np.abs(got - exact) <= 4e-16 * np.maximum(np.abs(WIDE), 1e-300)).all()


def test_gelu_in_float32_is_within_a_few_roundoffs():
    x = WIDE.astype(np.float32)
    got = activations.gelu(np, x)
    assert got.dtype == np.float32
    assert (np.abs(got - x.astype(np.float64) * phi(x)) <= 4 * 2.0**-24 * np.abs(x)).all()


@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh", "silu", "relu"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_activations_of_infinity_and_nan(backend, activation, dtype):
    """At -inf they are 0, their limit."""
    got = backend.to_numpy(ACTIVATIONS[activation](backend.from_numpy(np.asarray([np.inf, -np.inf, np.nan], dtype=dtype))))
    assert got[0] == np.inf and abs(got[1]) < 1e-20 and np.isnan(got[2])


def test_the_gradient_of_gelu_at_zero_is_a_half():
    x = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    activations.gelu(load("torch").xp, x).sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), 0.5, rtol=1e-15)


def test_the_coefficients_of_gelu_fit_its_formula():
    """Fit the Chebyshev series again, at 40 digits."""
    with mpmath.workdps(40):
        t0, n = mpmath.mpf("3.2"), 80
        nodes = [mpmath.cos(mpmath.pi * (k + mpmath.mpf(1) / 2) / n) for k in range(n)]

        def function(y):
            t = (y + 1) / 2
            a = t0 / t - t0
            return mpmath.log(mpmath.erfc(a / mpmath.sqrt(2)) / 2) + a**2 / 2 - mpmath.log(t)

        values = [function(y) for y in nodes]
        for j, coefficient in enumerate(activations._TAIL):
            waves = [mpmath.cos(mpmath.pi * j * (k + mpmath.mpf(1) / 2) / n) for k in range(n)]
            fitted = mpmath.fsum(v * w for v, w in zip(values, waves, strict=True)) * (2 if j else 1) / n
            assert abs(fitted - coefficient) < 1e-16


def test_layer_norm_stays_accurate_with_a_large_common_shift(rng):
    x = rng.normal(size=(4, 64))
    np.testing.assert_allclose(mha.layer_norm(x + 1e6), mha.layer_norm(x), atol=1e-8)


@pytest.mark.parametrize("d_model", [6, 7])
def test_sinusoidal_positions_are_those_of_the_paper(backend, d_model):
    got = backend.to_numpy(mha.sinusoidal_positions(50, d_model, backend=backend.name))
    expected = np.empty((50, d_model))
    for pos in range(50):
        for i in range(d_model):
            angle = pos / 10000 ** ((i - i % 2) / d_model)
            expected[pos, i] = math.cos(angle) if i % 2 else math.sin(angle)
    assert (got == expected.astype(np.float32)).all()  # bit for bit


def test_sinusoidal_positions_stay_accurate_at_long_distances():
    got = mha.sinusoidal_positions(100_001, 2)
    assert got[100_000, 0] == np.float32(math.sin(100_000))
    assert mha.sinusoidal_positions(0, 4).shape == (0, 4)
    with pytest.raises(ValueError, match="length is -1; expected an int of at least 0"):
        mha.sinusoidal_positions(-1, 4)


def test_tables_are_exact_in_the_dtype_asked_for(backend):
    got = backend.to_numpy(mha.sinusoidal_positions(9, 4, backend=backend.name, dtype="float64"))
    assert got.dtype == np.float64 and got[8, 2] == math.sin(8 / 100)
    cos, sin = mha.rotary_tables(9, 4, base=100.0, backend=backend.name, dtype="float64")
    assert backend.to_numpy(cos)[8, 1] == math.cos(8 / 10) and backend.to_numpy(sin)[8, 1] == math.sin(8 / 10)
    for wrong in ("int64", "float63", backend.xp.int64, 3):
        with pytest.raises(TypeError, match=r"dtype is .*expected float32, float64 or another floating dtype of"):
            mha.sinusoidal_positions(3, 4, backend=backend.name, dtype=wrong)


X, W = np.ones((2, 3, 4)), np.ones((4, 5))
test_bad_arguments_are_refused_by_name = refusals(
    {
        TypeError: {
            "ids has dtype float64; expected integers": lambda: mha.embedding(X, W),
        },
        ValueError: {
            "approximate is 'erf'; expected 'none' or 'tanh'": lambda: mha.gelu(X, approximate="erf"),
            "w has shape (5, 4); expected (n, m) with n = 4": lambda: mha.linear(X, W.T),
            "b has shape (4,); expected (m,) = (5,)": lambda: mha.linear(X, W, np.ones(4)),
            "x has 4 features; this layer takes 5 (d_model)": lambda: mha.feed_forward(X, W.T, None, W, None),
            "x has 4 features; this layer takes 3 (d_model)": lambda: mha.layer_norm(X, bias=np.ones(3)),
            "bias has shape (3,); expected the last axis of x = (4,)": lambda: mha.layer_norm(X, np.ones(4), np.ones(3)),
            "weight has shape (4, 1); expected the last axis of x = (4,)": lambda: mha.rms_norm(X, np.ones((4, 1))),
            "activation is 'elu'; expected one of relu, gelu, gelu_tanh, silu": lambda: mha.feed_forward(
                X, W, None, W.T, None, activation="elu"
            ),
            "b_g is given without w_g": lambda: mha.feed_forward(X, W, None, W.T, None, b_g=np.ones(5)),
            "dim is 3; expected an even number": lambda: mha.rotary_tables(4, 3),
        },
    }
)
