"""Layers on the backend under test beside the same layers in NumPy float64, for their own tests and for kernels of theirs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

import mha_core as mha

from . import reference
from .oracle import Floats
from .subject import Subject
from .tolerance import UNIT_ROUNDOFF, assert_within

SMALL: dict[str, Any] = {"d_model": 16, "num_heads": 4, "d_ff": 24}
# what rounding was seen to do to these small layers is 5 to 25 unit roundoffs of the greatest number in them
ROUNDINGS = 200


def on(subject: Subject, layer: Any, dtype: str, rng: np.random.Generator) -> tuple[Any, Any]:
    """A layer with no bias 0 and no weight of a norm 1, so that forgetting one shows; and the same on the backend."""
    exact = layer.map(lambda x: subject.rounded(x + 0.3 * rng.normal(size=x.shape), dtype))
    return exact, exact.map(lambda x: subject.array(x, dtype))


def assert_close(subject: Subject, result: Any, given: Any, expected: np.ndarray, dtype: str) -> None:
    subject.assert_like(result, given)
    bound = ROUNDINGS * UNIT_ROUNDOFF[dtype] * max(1.0, float(np.abs(expected).max(initial=0)))
    assert_within("layers", subject.numpy(result), expected, np.full(expected.shape, bound))


LAYERS = ("encoder_layer", "multi_head_attention", "feed_forward")
"""The larger operations of core that kernels may compute whole, and that are judged here."""


def layer_calls(subject: Subject, op: str, dtype: str, rng: np.random.Generator) -> Iterator[tuple[Any, Any, Floats]]:
    """Calls of a larger operation: its result, what it was given, and NumPy's answer."""
    x = subject.rounded(rng.normal(size=(6, 16)), dtype)
    there, causal = subject.array(x, dtype), np.tri(6, dtype=bool)
    if op == "encoder_layer":
        for activation in ("relu", "gelu", "silu"):
            for norm_first in (False, True):
                made = mha.EncoderLayer.init(**SMALL, activation=activation, norm_first=norm_first, seed=2)
                exact, layer = on(subject, made, dtype, rng)
                yield layer(there), there, reference.encoder_layer(x, exact)
                yield layer(there, mask=mha.causal()), there, reference.encoder_layer(x, exact, allowed=causal)
    elif op == "multi_head_attention":
        for kv_heads in (4, 2):
            made_heads = mha.MultiHeadAttention.init(d_model=16, num_heads=4, num_kv_heads=kv_heads, seed=1)
            exact, heads = on(subject, made_heads, dtype, rng)
            yield heads(there), there, reference.multi_head(x, exact)
            yield heads(there, mask=mha.causal()), there, reference.multi_head(x, exact, allowed=causal)
    elif op == "feed_forward":
        for activation in ("relu", "gelu", "silu"):
            made_net = mha.FeedForward.init(d_model=16, d_ff=24, activation=activation, seed=3)
            exact, net = on(subject, made_net, dtype, rng)
            yield net(there), there, reference.feed_forward(x, exact)
