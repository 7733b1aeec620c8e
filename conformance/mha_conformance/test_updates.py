"""The updates of optimisers, against the formula in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mha_core.plugin import Kernel
from mha_core.shared import ALGEBRA, FEATURES, adamw

from .judge.designed import judge_design
from .judge.held import Judge
from .oracle.tolerance import compute_dtype
from .probes.computed_by import ComputedBy

SECTION = "layers"
pytestmark = pytest.mark.promise(0)
SETTINGS = {"learning_rate": 1e-3, "beta_1": 0.9, "beta_2": 0.999, "eps": 1e-8, "weight_decay": 0.01, "step": 0}


def test_a_kernel_on_updates_of_a_covering_design(judge: Judge, update_kernel: Kernel) -> None:
    judge_design(judge, "adamw", update_kernel.name, update_kernel.handles).assert_computed()


def test_the_algebra_on_updates_of_a_covering_design(judge: Judge) -> None:
    judge_design(judge, "adamw", ALGEBRA, FEATURES["adamw"]).assert_computed()


def test_a_gradient_that_is_not_finite_stays_in_its_element(first: Judge, update_by: ComputedBy) -> None:
    w, gradient = (first.normal((5, 4)) for _ in range(2))

    def step(g: np.ndarray) -> Any:
        state = (first.array(np.zeros((5, 4)), compute_dtype(first.dtype)) for _ in range(2))  # it may be written to
        return adamw(first.array(w), first.array(g), *state, **SETTINGS, gradient_scale=1.0)

    plain, poisoned = step(gradient), step(np.where(np.arange(20).reshape(5, 4) == 6, np.nan, gradient))
    for a, b in zip(plain, poisoned, strict=True):
        a, b = first.numpy(a).reshape(-1), first.numpy(b).reshape(-1)
        assert np.isnan(b[6])
        np.testing.assert_array_equal(np.delete(a, 6), np.delete(b, 6))
