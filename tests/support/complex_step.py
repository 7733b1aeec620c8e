"""Complex-step derivatives (Squire and Trapp 1998): Im f(x + i h d) / h, without cancellation, so that h may be tiny."""

import math

import numpy as np

STEP = 1e-30


def along(value, arrays, name, direction):
    """Return the derivative of a real function of complex arrays along a direction of one of them."""
    moved = {**arrays, name: arrays[name] + 1j * STEP * direction}
    return np.imag(value(moved)) / STEP


def assert_derivatives(value, arrays, gradients, rng, bounds=None):
    """Hold each gradient to derivatives along random directions, within 1e-13 of its terms, or a tenth of its bound."""
    for name, gradient in gradients.items():
        for _ in range(2):
            direction = rng.normal(size=arrays[name].shape)
            terms, expected = gradient * direction, along(value, arrays, name, direction)
            allowed = 1e-13 * np.abs(terms).sum()
            if bounds is not None:  # of gradients whose terms cancel
                allowed += 0.1 * math.hypot(*(bounds[name] * direction).ravel())  # squares of tiny numbers would be 0
            assert abs(terms.sum() - expected) <= allowed, (name, terms.sum(), expected)
