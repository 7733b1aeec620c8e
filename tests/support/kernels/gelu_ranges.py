"""Ranges of numbers on which GELU is tested, and the error that it may have."""

import math

import numpy as np

BOUND = 1.8  # unit roundoffs of x, as mha_numpy/gelu.py says; 1.73 for the worst of all floats


UNIT = 2.0**-24  # the unit roundoff of float32


HALF_SUBNORMAL = 2.0**-150  # the rounding error of subnormal results


def exact_gelu(x):
    """x Phi(x) in float64, precise also where Phi(x) is tiny."""
    x = np.asarray(x, dtype=np.float64)
    return np.asarray([0.5 * v * math.erfc(-v / math.sqrt(2)) for v in x.ravel()]).reshape(x.shape)


def assert_close(y, x):
    """Assert that y is GELU of x within BOUND unit roundoffs of x."""
    error = np.abs(y.astype(np.float64) - exact_gelu(x))
    allowed = BOUND * UNIT * np.abs(x.astype(np.float64)) + HALF_SUBNORMAL
    wrong = error > allowed
    assert not wrong.any(), f"at x = {x[wrong][:5]}: off by {error[wrong][:5]}, allowed {allowed[wrong][:5]}"


RANGES = {
    "middle": np.linspace(-6, 6, 200_001),
    "tails": np.linspace(-16, 16, 50_001),
    "small": np.geomspace(1e-30, 1, 20_001),
    "large": np.geomspace(6, 3e38, 5_001),
    "subnormal": np.arange(200) * 2.0**-149,
    "worst of all floats": np.asarray([0.21530436, 0.21532845, 0.38723859, 0.4173327, 0.68868554, 0.77726567]),
    "every float near the end of the fit": np.float32(9) + np.arange(-5000, 5000) * np.float32(2**-20),
}
