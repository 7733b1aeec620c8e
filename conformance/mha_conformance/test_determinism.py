"""The same call gives the same bits (promise 14): twice in a row, and again after other calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import mha_core as mha

from .backend import BackendUnderTest
from .cases.features import FEATURES, go_together, plain, rounded, with_features
from .cases.layers import SMALL, perturbed
from .cases.pieces import piece_calls
from .judge.same_bits import assert_same_bits
from .probes.computed_by import ComputedBy

pytestmark = pytest.mark.promise(14)


def attention_calls(
    backend: BackendUnderTest, rng: np.random.Generator, dtype: str, features: list[str]
) -> dict[str, Callable[[], Any]]:
    """Return a plain call, one call with each feature, and one with several."""
    several = [name for name in features if rng.random() < 0.4]
    chosen = [[], *([name] for name in features), *([several] if go_together(several) else [])]

    def call(names: list[str]) -> Callable[[], Any]:
        made = rounded(with_features(plain(rng, 33, 16), names, rng), lambda x: backend.rounded(x, dtype))
        arrays = [backend.array(x, dtype) for x in (made.query, made.key, made.value)]
        options = {name: option(lambda x: backend.array(x, dtype)) for name, option in made.options.items()}
        return lambda: mha.attention_state(*arrays, **options)

    return {" and ".join(names) or "plain": call(names) for names in chosen}


def test_attention(backend: BackendUnderTest, attention_by: ComputedBy, dtype: str, rng: np.random.Generator) -> None:
    """With each feature that a kernel declares, or with all; in quick runs, what is chosen is judged with a few."""
    features = [name for name in FEATURES if name in attention_by.handles - {"lse"}]
    features = features[:: 8 if backend.quick and attention_by.kernel is None else 1]
    assert_same_bits(backend, attention_calls(backend, rng, dtype, features))


def test_the_other_operations_of_attention(
    backend: BackendUnderTest, attention_by: ComputedBy, dtype: str, rng: np.random.Generator
) -> None:
    query, key, value = (backend.array(rng.normal(size=(2, 2, 9, 8)), dtype) for _ in range(3))
    x, w = (backend.array(rng.normal(size=shape), dtype) for shape in ((2, 9, 8), (8, 8)))
    state = mha.attention_state(query, key, value)
    calls = {
        "attention_weights": lambda: mha.attention_weights(query, key, mask=mha.causal()),
        "rows of attention_weights": lambda: mha.attention_weights(query, key, state.lse, rows=slice(2, 5)),
        "merge_states": lambda: tuple(mha.merge_states(state, state, state)),
        "self_attention": lambda: mha.self_attention(x, w, w, w, mask=mha.causal()),
        "multi_head_attention": lambda: mha.multi_head_attention(x, w, w, w, w, 2),
    }
    assert_same_bits(backend, calls)


def test_pieces(backend: BackendUnderTest, piece_by: ComputedBy, dtype: str, rng: np.random.Generator) -> None:
    def call(made: Any) -> Callable[[], Any]:
        arrays = [None if x is None else backend.array(x, dtype) for x in made.arrays]
        return lambda: made.operation(*arrays, **made.options)

    op = piece_by.op
    assert_same_bits(backend, {f"{op} ({at})": call(made) for at, made in enumerate(piece_calls(rng, op))})


def test_layers(backend: BackendUnderTest, wide_dtype: str, rng: np.random.Generator) -> None:
    _, encoder = perturbed(backend, mha.EncoderLayer.init(**SMALL, seed=1), wide_dtype, rng)
    _, decoder = perturbed(backend, mha.DecoderLayer.init(**SMALL, seed=2), wide_dtype, rng)
    x, memory = (backend.array(rng.normal(size=(n, 16)), wide_dtype) for n in (6, 7))
    assert_same_bits(backend, {"encoder layer": lambda: encoder(x), "decoder layer": lambda: decoder(x, memory)})
