"""The same call gives the same bits (promise 14): twice in a row, and again after other calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import mha_core as mha

from ..dispatch.contract import Kernel
from .backend import BackendUnderTest
from .cases.features import ALL_FEATURES, FEATURES, go_together, plain, rounded, with_features
from .cases.layers import SMALL, perturbed
from .cases.pieces import PIECES, piece_calls
from .probes.recorder import recorded
from .report.sections import REFUSED_EVERY_CALL

pytestmark = pytest.mark.promise(14)


def bits(backend: BackendUnderTest, result: Any) -> bytes:
    """Return the bytes of an array, or of a tuple of arrays."""
    several = result if isinstance(result, tuple) else (result,)
    return b"".join(backend.numpy(x).tobytes() for x in several)


def assert_same_bits(backend: BackendUnderTest, calls: dict[str, Callable[[], Any]]) -> None:
    """Make each call twice in a row, then all of them again in reverse order."""
    first = {}
    for name, call in calls.items():
        first[name] = bits(backend, call())
        assert bits(backend, call()) == first[name], f"{name} returned different bits the second time"
    for name, call in reversed(calls.items()):
        assert bits(backend, call()) == first[name], f"{name} returned different bits after other calls"


def attention_calls(
    backend: BackendUnderTest, rng: np.random.Generator, dtype: str, features: list[str], operation: Callable[..., Any]
) -> dict[str, Callable[[], Any]]:
    """Return a plain call, one call with each feature, and one with several."""
    several = [name for name in features if rng.random() < 0.4]
    chosen = [[], *([name] for name in features), *([several] if go_together(several) else [])]

    def call(names: list[str]) -> Callable[[], Any]:
        made = rounded(with_features(plain(rng, 33, 16), names, rng), lambda x: backend.rounded(x, dtype))
        arrays = [backend.array(x, dtype) for x in (made.query, made.key, made.value)]
        options = {name: option(lambda x: backend.array(x, dtype)) for name, option in made.options.items()}
        return lambda: operation(*arrays, **options)

    return {" and ".join(names) or "plain": call(names) for names in chosen}


def test_attention(backend: BackendUnderTest, dtype: str, rng: np.random.Generator) -> None:
    features = [name for name in FEATURES if name != "lse"]
    features = features[::8] if backend.quick else features
    assert_same_bits(backend, attention_calls(backend, rng, dtype, features, mha.attention_state))


def test_a_kernel_of_attention(
    backend: BackendUnderTest, attention_kernel: Kernel, dtype: str, rng: np.random.Generator
) -> None:
    declared = [name for name in FEATURES if name in attention_kernel.handles]
    operation = mha.attention_state if "lse" in declared else mha.scaled_dot_product_attention
    with recorded(attention_kernel, ALL_FEATURES) as recording:
        assert_same_bits(backend, attention_calls(backend, rng, dtype, declared, operation))
    if not recording.runs:
        pytest.skip(f"{REFUSED_EVERY_CALL}: {'; '.join(sorted(set(recording.reasons)))}")


def test_the_other_operations_of_attention(backend: BackendUnderTest, dtype: str, rng: np.random.Generator) -> None:
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


@pytest.mark.parametrize("op", PIECES)
def test_pieces(backend: BackendUnderTest, dtype: str, rng: np.random.Generator, op: str) -> None:
    def call(made: Any) -> Callable[[], Any]:
        arrays = [None if x is None else backend.array(x, dtype) for x in made.arrays]
        return lambda: made.operation(*arrays, **made.options)

    assert_same_bits(backend, {f"{op} ({at})": call(made) for at, made in enumerate(piece_calls(rng, op))})


def test_layers(backend: BackendUnderTest, wide_dtype: str, rng: np.random.Generator) -> None:
    _, encoder = perturbed(backend, mha.EncoderLayer.init(**SMALL, seed=1), wide_dtype, rng)
    _, decoder = perturbed(backend, mha.DecoderLayer.init(**SMALL, seed=2), wide_dtype, rng)
    x, memory = (backend.array(rng.normal(size=(n, 16)), wide_dtype) for n in (6, 7))
    assert_same_bits(backend, {"encoder layer": lambda: encoder(x), "decoder layer": lambda: decoder(x, memory)})
