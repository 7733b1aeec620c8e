"""The same call gives the same bits (promise 14): twice in a row, and again after other calls."""

from __future__ import annotations

import numpy as np
import pytest

import mha_core as mha

from .backend import BackendUnderTest
from .cases.features import FEATURES, go_together, problem_with
from .cases.layers import SMALL, perturbed
from .cases.pieces import piece_problems
from .judge.held import Judge
from .judge.same_bits import Work, assert_same_bits
from .probes.computed_by import ComputedBy

pytestmark = pytest.mark.promise(14)


def test_attention(backend: BackendUnderTest, attention_by: ComputedBy, dtype: str, rng: np.random.Generator) -> None:
    """With each feature that a kernel declares, or with all; in quick runs, what is chosen is judged with a few."""
    features = [name for name in FEATURES if name in attention_by.handles - {"lse"}]
    features = features[:: 8 if backend.quick and attention_by.kernel is None else 1]
    several, judge = [name for name in features if rng.random() < 0.4], Judge(backend, dtype)
    chosen = [[], *([name] for name in features), *([several] if go_together(several) else [])]
    assert_same_bits(
        {" and ".join(names) or "plain": judge.work(problem_with([*names, "lse"], rng, 33, 16)) for names in chosen}
    )


def test_the_other_operations_of_attention(
    backend: BackendUnderTest, attention_by: ComputedBy, dtype: str, rng: np.random.Generator
) -> None:
    query, key, value = (backend.array(rng.normal(size=(2, 2, 9, 8)), dtype) for _ in range(3))
    x, w = (backend.array(rng.normal(size=shape), dtype) for shape in ((2, 9, 8), (8, 8)))
    state, bits = mha.attention_state(query, key, value), backend.bits
    works: dict[str, Work] = {
        "attention_weights": lambda: bits(mha.attention_weights(query, key, mask=mha.causal())),
        "rows of attention_weights": lambda: bits(mha.attention_weights(query, key, state.lse, rows=slice(2, 5))),
        "merge_states": lambda: bits(mha.merge_states(state, state, state)),
        "self_attention": lambda: bits(mha.self_attention(x, w, w, w, mask=mha.causal())),
        "multi_head_attention": lambda: bits(mha.multi_head_attention(x, w, w, w, w, 2)),
    }
    assert_same_bits(works)


def test_pieces(backend: BackendUnderTest, piece_by: ComputedBy, dtype: str, rng: np.random.Generator) -> None:
    judge, op = Judge(backend, dtype), piece_by.op
    assert_same_bits({f"{op} ({at})": judge.work(problem) for at, problem in enumerate(piece_problems(op, rng))})


def test_layers(backend: BackendUnderTest, wide_dtype: str, rng: np.random.Generator) -> None:
    _, encoder = perturbed(backend, mha.EncoderLayer.init(**SMALL, seed=1), wide_dtype, rng)
    _, decoder = perturbed(backend, mha.DecoderLayer.init(**SMALL, seed=2), wide_dtype, rng)
    x, memory = (backend.array(rng.normal(size=(n, 16)), wide_dtype) for n in (6, 7))
    bits = backend.bits
    assert_same_bits({"encoder layer": lambda: bits(encoder(x)), "decoder layer": lambda: bits(decoder(x, memory))})
