"""Layers against the same formulas in NumPy float64, and conversion of layers between libraries."""

from __future__ import annotations

import numpy as np
import pytest

import mha_core as mha

from .cases.layer_problem import plain_layer_problem
from .judge.held import Judge
from .judge.layers import SMALL, assert_computes, perturbed
from .oracle.layers import Layers

pytestmark = pytest.mark.promise(0, 9)
NORM_FIRST = pytest.mark.parametrize("norm_first", [False, True], ids=["post-norm", "pre-norm"])


@pytest.mark.parametrize("kv_heads", [4, 2, 1])
def test_multi_head_attention(judge: Judge, kv_heads: int) -> None:
    heads = {"kv_heads": kv_heads, "groups": 4 // kv_heads, "kv_heads given": True}
    options = {"context": "context", "queries": 5, "keys": 7, "array": "scores"}
    judge.judge_once(plain_layer_problem("multi_head_attention", judge.rng, **heads, **options))


@pytest.mark.parametrize("activation", ["relu", "gelu", "silu"])
@NORM_FIRST
def test_encoder(judge: Judge, norm_first: bool, activation: str) -> None:
    if judge.quick and norm_first and activation != "gelu":
        pytest.skip("quick runs judge one activation with pre-norm")
    made = mha.Encoder.init(**SMALL, num_layers=2, activation=activation, norm_first=norm_first, seed=2)
    exact, encoder = perturbed(judge, made)
    x = judge.normal((6, 16))
    there = judge.array(x)
    for mask, allowed in ((None, None), (mha.causal(), np.tri(6, dtype=bool))):

        def compute(layers: Layers, allowed: np.ndarray | None = allowed) -> np.ndarray:
            return layers.encoder(x, exact, allowed=allowed)

        assert_computes(judge, encoder(there, mask=mask), there, compute)


@NORM_FIRST
def test_decoder_at_once_and_step_by_step(judge: Judge, norm_first: bool) -> None:
    exact, decoder = perturbed(judge, mha.Decoder.init(**SMALL, num_layers=2, norm_first=norm_first, seed=3))
    y, memory = (judge.normal((n, 16)) for n in (5, 7))
    there, context = judge.array(y), judge.array(memory)
    cache = mha.DecoderCache()
    steps = [decoder(there[at : at + 1, :], context, cache=cache) for at in range(5)]
    for got in (decoder(there, context), judge.xp.concat(steps, axis=0)):
        assert_computes(judge, got, there, lambda layers: layers.decoder(y, exact, memory=memory))


def test_layers_are_made_on_the_backend(wide: Judge) -> None:
    """The same seed gives the same numbers on every backend."""
    made = mha.EncoderLayer.init(**SMALL, seed=4, backend=wide.name, dtype=wide.dtype, device=wide.device)
    expected = mha.EncoderLayer.init(**SMALL, seed=4, backend="numpy", dtype=wide.dtype).arrays()
    like = wide.array(np.zeros(1))
    for name, x in made.arrays().items():
        wide.assert_like(x, like)
        np.testing.assert_array_equal(wide.numpy(x), expected[name])


def test_a_layer_travels_to_numpy_and_back(wide: Judge) -> None:
    there = mha.EncoderLayer.init(**SMALL, seed=5, backend=wide.name, dtype=wide.dtype, device=wide.device)
    back = there.to("numpy").to(wide.name, device=wide.device)
    for name, x in back.arrays().items():
        wide.assert_like(x, there.arrays()[name])
        np.testing.assert_array_equal(wide.numpy(x), wide.numpy(there.arrays()[name]))
