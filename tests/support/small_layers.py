"""Small layers and gradients for tests of optimisers."""

from collections import namedtuple
from dataclasses import dataclass
from typing import Any

import numpy as np

import mha_core as mha
from mha_core.dispatch.backend import load
from mha_core.layers.base import Layer

Pair = namedtuple("Pair", ["first", "second"])


@dataclass(frozen=True, eq=False)
class Classifier(Layer):
    encoder: mha.EncoderLayer
    table: Any
    heads: tuple[Any, ...]
    name: str = "test"
    ids: Any = None


def classifier(backend="numpy"):
    xp = load(backend).xp
    encoder = mha.EncoderLayer.init(d_model=4, num_heads=2, d_ff=8, seed=0, backend=backend)
    return Classifier(encoder, xp.ones((3, 4)), (xp.zeros((4, 2)), Pair(xp.ones((2,)), None)), ids=xp.arange(3))


def ones_like(model):
    """Return gradients of 1 for each floating array of a layer."""
    return model.map(lambda x: np.ones_like(x) if x.dtype.kind == "f" else None)
