"""Layers on the backend under test, with the same layers in NumPy float64."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

import mha_core as mha

from ..backend import BackendUnderTest
from ..oracle import reference
from ..oracle.naive_attention import Floats
from ..oracle.tolerance import UNIT_ROUNDOFF, assert_within

SMALL: dict[str, Any] = {"d_model": 16, "num_heads": 4, "d_ff": 24}
ROUNDINGS = 200
"""Error allowed, in unit roundoffs of the largest number; rounding errors seen in these small layers are 5 to 25."""


def perturbed(backend: BackendUnderTest, layer: Any, dtype: str, rng: np.random.Generator) -> tuple[Any, Any]:
    """Add noise to all weights, so that an ignored bias or norm shows; return the layer in NumPy and on the backend."""
    exact = layer.map(lambda x: backend.rounded(x + 0.3 * rng.normal(size=x.shape), dtype))
    return exact, exact.map(lambda x: backend.array(x, dtype))


def assert_close(backend: BackendUnderTest, result: Any, given: Any, expected: np.ndarray, dtype: str) -> None:
    """Raise AssertionError if a layer's result differs from its input in kind, or its error exceeds ``ROUNDINGS``."""
    backend.assert_like(result, given)
    bound = ROUNDINGS * UNIT_ROUNDOFF[dtype] * max(1.0, float(np.abs(expected).max(initial=0)))
    assert_within("layers", backend.numpy(result), expected, np.full(expected.shape, bound))


LAYERS = ("encoder_layer", "multi_head_attention", "feed_forward")
"""Operations of whole layers that a kernel may compute and the suite judges."""


def layer_calls(backend: BackendUnderTest, op: str, dtype: str, rng: np.random.Generator) -> Iterator[tuple[Any, Any, Floats]]:
    """Call a layer operation in every setting; yield its result, its input and NumPy's answer."""
    x = backend.rounded(rng.normal(size=(6, 16)), dtype)
    there, causal = backend.array(x, dtype), np.tri(6, dtype=bool)
    if op == "encoder_layer":
        for activation in ("relu", "gelu", "silu"):
            for norm_first in (False, True):
                made = mha.EncoderLayer.init(**SMALL, activation=activation, norm_first=norm_first, seed=2)
                exact, layer = perturbed(backend, made, dtype, rng)
                yield layer(there), there, reference.encoder_layer(x, exact)
                yield layer(there, mask=mha.causal()), there, reference.encoder_layer(x, exact, allowed=causal)
    elif op == "multi_head_attention":
        for kv_heads in (4, 2):
            made_heads = mha.MultiHeadAttention.init(d_model=16, num_heads=4, num_kv_heads=kv_heads, seed=1)
            exact, heads = perturbed(backend, made_heads, dtype, rng)
            yield heads(there), there, reference.multi_head(x, exact)
            yield heads(there, mask=mha.causal()), there, reference.multi_head(x, exact, allowed=causal)
    elif op == "feed_forward":
        for activation in ("relu", "gelu", "silu"):
            made_net = mha.FeedForward.init(d_model=16, d_ff=24, activation=activation, seed=3)
            exact, net = perturbed(backend, made_net, dtype, rng)
            yield net(there), there, reference.feed_forward(x, exact)
