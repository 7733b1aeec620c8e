"""The same call gives the same bits (promise 14): twice in a row, and again after other calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import mha_core as mha

from ..dispatch.contract import Kernel
from .calls import BESIDE, FEATURES, go_together, plain, rounded, with_features
from .layers import SMALL, on
from .pieces import PIECES, piece_calls
from .spy import watched
from .subject import Subject

pytestmark = pytest.mark.promise(14)


def bits(subject: Subject, result: Any) -> bytes:
    """Of an array, or of several."""
    several = result if isinstance(result, tuple) else (result,)
    return b"".join(subject.numpy(x).tobytes() for x in several)


def assert_same_bits(subject: Subject, calls: dict[str, Callable[[], Any]]) -> None:
    """Each twice in a row, then all again from the last to the first."""
    first = {}
    for name, call in calls.items():
        first[name] = bits(subject, call())
        assert bits(subject, call()) == first[name], f"{name} gave other bits the second time"
    for name, call in reversed(calls.items()):
        assert bits(subject, call()) == first[name], f"{name} gave other bits after other calls"


def attention_calls(
    subject: Subject, rng: np.random.Generator, dtype: str, features: list[str], operation: Callable[..., Any]
) -> dict[str, Callable[[], Any]]:
    """A plain one, one with each of the features, and one with several."""
    several = [name for name in features if rng.random() < 0.4]
    chosen = [[], *([name] for name in features), *([several] if go_together(several) else [])]

    def call(names: list[str]) -> Callable[[], Any]:
        made = rounded(with_features(plain(rng, 33, 16), names, rng), lambda x: subject.rounded(x, dtype))
        arrays = [subject.array(x, dtype) for x in (made.query, made.key, made.value)]
        options = {name: option(lambda x: subject.array(x, dtype)) for name, option in made.options.items()}
        return lambda: operation(*arrays, **options)

    return {" and ".join(names) or "plain": call(names) for names in chosen}


def test_attention(subject: Subject, dtype: str, rng: np.random.Generator) -> None:
    features = [name for name in FEATURES if name != "lse"]
    features = features[::8] if subject.quick else features
    assert_same_bits(subject, attention_calls(subject, rng, dtype, features, mha.attention_state))


def test_a_kernel_of_attention(subject: Subject, attention_kernel: Kernel, dtype: str, rng: np.random.Generator) -> None:
    declared = [name for name in FEATURES if name in attention_kernel.handles]
    operation = mha.attention_state if "lse" in declared else mha.scaled_dot_product_attention
    with watched(attention_kernel, {*FEATURES, *BESIDE}) as watch:
        assert_same_bits(subject, attention_calls(subject, rng, dtype, declared, operation))
    if not watch.runs:
        pytest.skip(f"the kernel refused every call: {'; '.join(sorted(set(watch.reasons)))}")


def test_the_other_operations_of_attention(subject: Subject, dtype: str, rng: np.random.Generator) -> None:
    query, key, value = (subject.array(rng.normal(size=(2, 2, 9, 8)), dtype) for _ in range(3))
    x, w = (subject.array(rng.normal(size=shape), dtype) for shape in ((2, 9, 8), (8, 8)))
    state = mha.attention_state(query, key, value)
    calls = {
        "attention_weights": lambda: mha.attention_weights(query, key, mask=mha.causal()),
        "rows of attention_weights": lambda: mha.attention_weights(query, key, state.lse, rows=slice(2, 5)),
        "merge_states": lambda: tuple(mha.merge_states(state, state, state)),
        "self_attention": lambda: mha.self_attention(x, w, w, w, mask=mha.causal()),
        "multi_head_attention": lambda: mha.multi_head_attention(x, w, w, w, w, 2),
    }
    assert_same_bits(subject, calls)


@pytest.mark.parametrize("op", PIECES)
def test_pieces(subject: Subject, dtype: str, rng: np.random.Generator, op: str) -> None:
    def call(made: Any) -> Callable[[], Any]:
        arrays = [None if x is None else subject.array(x, dtype) for x in made.arrays]
        return lambda: made.operation(*arrays, **made.options)

    assert_same_bits(subject, {f"{op} ({at})": call(made) for at, made in enumerate(piece_calls(rng, op))})


def test_layers(subject: Subject, wide_dtype: str, rng: np.random.Generator) -> None:
    _, encoder = on(subject, mha.EncoderLayer.init(**SMALL, seed=1), wide_dtype, rng)
    _, decoder = on(subject, mha.DecoderLayer.init(**SMALL, seed=2), wide_dtype, rng)
    x, memory = (subject.array(rng.normal(size=(n, 16)), wide_dtype) for n in (6, 7))
    assert_same_bits(subject, {"encoder layer": lambda: encoder(x), "decoder layer": lambda: decoder(x, memory)})
