"""Layers on the backend under test, and the same layers in NumPy float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..oracle.attention import Floats
from ..oracle.layers import Layers, bounded
from ..oracle.tolerance import assert_within
from .held import Judge

SMALL: dict[str, Any] = {"d_model": 16, "num_heads": 4, "d_ff": 24}


def perturbed(judge: Judge, layer: Any) -> tuple[Any, Any]:
    """Add noise to all weights, so that an ignored bias or norm shows; return the layer in NumPy and on the backend."""
    exact = layer.map(lambda x: judge.rounded(x + 0.3 * judge.rng.normal(size=x.shape)))
    return exact, exact.map(judge.array)


def assert_computes(judge: Judge, result: Any, given: Any, compute: Callable[[Layers], Floats]) -> None:
    """Raise AssertionError if a layer's result differs from its input in kind, or from what the oracle computes."""
    judge.assert_like(result, given)
    settings: dict[str, Any] = {"rounds_weights": judge.rounds_weights, "rng": judge.rng}
    expected = bounded(lambda layers: {"": compute(layers)}, judge.dtype, **settings)
    assert_within("layers", judge.numpy(result), *expected[""])
