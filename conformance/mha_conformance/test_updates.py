"""The updates of optimisers, against the formula in float64."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest

from mha_core.shared import adamw

from .judge.held import Judge
from .oracle.tolerance import SMALLEST, UNIT_ROUNDOFF, assert_within, compute_dtype
from .probes.computed_by import ComputedBy

SECTION = "layers"
pytestmark = pytest.mark.promise(0)
SHAPES = [(1,), (7, 3), (0, 5), (300, 513), (2, 3, 4, 5)]


class Settings(NamedTuple):
    learning_rate: float
    beta_1: float
    beta_2: float
    eps: float
    weight_decay: float
    step: int


SETTINGS = [
    Settings(1e-3, 0.9, 0.999, 1e-8, 0.01, 0),
    Settings(0.3, 0.5, 0.9, 1e-3, 0.0, 17),
    Settings(0.0, 0.0, 0.0, 1e-8, 0.5, 3),
]


def test_a_step_of_adamw_is_that_of_the_formula(judge: Judge, update_by: ComputedBy) -> None:
    wide = compute_dtype(judge.dtype)
    for shape in SHAPES:
        for settings in SETTINGS:
            for scale in (1.0, 0.25):
                w, gradient = (judge.normal(shape) for _ in range(2))
                m, v = (
                    judge.rounded(judge.rng.normal(size=shape), wide),
                    judge.rounded(judge.rng.random(size=shape) + 0.01, wide),
                )
                arrays = [judge.array(x) for x in (w, gradient)] + [judge.array(x, wide) for x in (m, v)]
                updated = adamw(*arrays, **settings._asdict(), gradient_scale=scale)
                names = zip(("w", "m", "v"), updated, _exact(w, gradient * scale, m, v, judge.dtype, settings), strict=True)
                for name, got, (exact, bound) in names:
                    assert_within(f"adamw {name}", judge.numpy(got), exact, bound)
                np.testing.assert_array_equal(judge.numpy(arrays[0]), w, err_msg="w was written to")
                np.testing.assert_array_equal(judge.numpy(arrays[1]), gradient, err_msg="the gradient was written to")


def test_a_gradient_that_is_not_finite_stays_in_its_element(first: Judge, update_by: ComputedBy) -> None:
    w, gradient = (first.normal((5, 4)) for _ in range(2))

    def step(g: np.ndarray) -> Any:
        state = (first.array(np.zeros((5, 4)), compute_dtype(first.dtype)) for _ in range(2))  # it may be written to
        return adamw(first.array(w), first.array(g), *state, **SETTINGS[0]._asdict(), gradient_scale=1.0)

    plain, poisoned = step(gradient), step(np.where(np.arange(20).reshape(5, 4) == 6, np.nan, gradient))
    for a, b in zip(plain, poisoned, strict=True):
        a, b = first.numpy(a).reshape(-1), first.numpy(b).reshape(-1)
        assert np.isnan(b[6])
        np.testing.assert_array_equal(np.delete(a, 6), np.delete(b, 6))


def _exact(w: Any, g: Any, m: Any, v: Any, dtype: str, settings: Settings) -> Iterator[tuple[Any, Any]]:
    """Yield the new w, m and v (Loshchilov and Hutter 2019, algorithm 2), each with the bound of its rounding."""
    learning_rate, beta_1, beta_2, eps, weight_decay, step = settings
    u, u_out = UNIT_ROUNDOFF[compute_dtype(dtype)], UNIT_ROUNDOFF[dtype]
    tiny = np.finfo(np.float32).tiny
    new_m, new_v = beta_1 * m + (1 - beta_1) * g, beta_2 * v + (1 - beta_2) * g * g
    size_m, size_v = beta_1 * np.abs(m) + (1 - beta_1) * np.abs(g), new_v
    c_1, c_2 = 1 - beta_1 ** (step + 1), 1 - beta_2 ** (step + 1)
    below = np.sqrt(new_v / c_2) + eps
    moved = learning_rate * new_m / c_1 / below
    decayed = (1 - learning_rate * weight_decay) * w
    error = 8 * u * (np.abs(decayed) + learning_rate * size_m / c_1 / below) + u_out * np.abs(decayed - moved)
    yield decayed - moved, 2 * error + tiny + SMALLEST[dtype]  # a result that is subnormal in half precision
    yield new_m, 8 * u * size_m + tiny
    yield new_v, 8 * u * size_v + tiny
