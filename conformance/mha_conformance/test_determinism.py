"""The same call gives the same bits (promise 14): twice in a row, and again after other calls."""

from __future__ import annotations

import pytest

import mha_core as mha

from .cases.features import FEATURES, go_together, problem_with
from .cases.layer_problem import SMALL, plain_layer_problem, stack_problem
from .cases.pieces import piece_problems
from .judge.held import Judge
from .judge.same_bits import Work, assert_same_bits
from .probes.computed_by import ComputedBy

pytestmark = pytest.mark.promise(14)


def test_attention(judge: Judge, attention_by: ComputedBy) -> None:
    """With each feature that a kernel declares, or with all; in quick runs, what is chosen is judged with a few."""
    features = [name for name in FEATURES if name in attention_by.handles - {"lse"}]
    features = features[:: 8 if judge.quick and attention_by.kernel is None else 1]
    several = [name for name in features if judge.rng.random() < 0.4]
    chosen = [[], *([name] for name in features), *([several] if go_together(several) else [])]
    assert_same_bits(
        {" and ".join(names) or "plain": judge.work(problem_with([*names, "lse"], judge.rng, 33, 16)) for names in chosen}
    )


def test_the_other_operations_of_attention(judge: Judge, attention_by: ComputedBy) -> None:
    query, key, value = (judge.array(judge.rng.normal(size=(2, 2, 9, 8))) for _ in range(3))
    x, w = (judge.array(judge.rng.normal(size=shape)) for shape in ((2, 9, 8), (8, 8)))
    state, bits = mha.attention_state(query, key, value), judge.bits
    works: dict[str, Work] = {
        "attention_weights": lambda: bits(mha.attention_weights(query, key, mask=mha.causal())),
        "rows of attention_weights": lambda: bits(mha.attention_weights(query, key, state.lse, rows=slice(2, 5))),
        "merge_states": lambda: bits(mha.merge_states(state, state, state)),
        "self_attention": lambda: bits(mha.self_attention(x, w, w, w, mask=mha.causal())),
        "multi_head_attention": lambda: bits(mha.multi_head_attention(x, w, w, w, w, 2)),
    }
    assert_same_bits(works)


def test_pieces(judge: Judge, piece_by: ComputedBy) -> None:
    op = piece_by.op
    assert_same_bits({f"{op} ({at})": judge.work(problem) for at, problem in enumerate(piece_problems(op, judge.rng))})


def test_layers(wide: Judge) -> None:
    decoder = mha.DecoderLayer.init(**SMALL, seed=2)
    problems = [plain_layer_problem("encoder_layer", wide.rng), stack_problem("decoder_layer", decoder, wide.rng, memory=7)]
    assert_same_bits({problem.op: wide.work(problem) for problem in problems})
