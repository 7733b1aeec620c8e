"""Layers on the backend under test, and the same layers in NumPy float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..backend import BackendUnderTest
from ..oracle.attention import Floats
from ..oracle.layer_gradients import LayerGradients, bounded
from ..oracle.tolerance import assert_within

SMALL: dict[str, Any] = {"d_model": 16, "num_heads": 4, "d_ff": 24}


def perturbed(backend: BackendUnderTest, layer: Any, dtype: str, rng: np.random.Generator) -> tuple[Any, Any]:
    """Add noise to all weights, so that an ignored bias or norm shows; return the layer in NumPy and on the backend."""
    exact = layer.map(lambda x: backend.rounded(x + 0.3 * rng.normal(size=x.shape), dtype))
    return exact, exact.map(lambda x: backend.array(x, dtype))


def assert_computes(
    backend: BackendUnderTest,
    result: Any,
    given: Any,
    compute: Callable[[LayerGradients], Floats],
    dtype: str,
    rng: np.random.Generator,
) -> None:
    """Raise AssertionError if a layer's result differs from its input in kind, or from what the oracle computes."""
    backend.assert_like(result, given)
    exact, bound = bounded(compute, dtype, rounds_weights=backend.rounds_weights, rng=rng)
    assert_within("layers", backend.numpy(result), exact, bound)
