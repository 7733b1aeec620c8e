"""Promise 14: any number of threads may call at the same time; each call gives the same bits as when it is made alone."""

from __future__ import annotations

import sys

import pytest

import mha_core as mha

from .cases.features import FEATURES, go_together, problem_with
from .cases.pieces import piece_problems
from .judge.held import Judge
from .judge.same_bits import Work, assert_same_bits_together
from .probes.computed_by import ComputedBy

pytestmark = pytest.mark.promise(14)
THREADS = 8


def test_attention_gives_the_same_bits(judge: Judge, attention_by: ComputedBy) -> None:
    """Different problems at the same time, with the features that a kernel declares, or with all."""
    features = [name for name in FEATURES if name in attention_by.handles - {"lse"}]
    features = features[:: 4 if judge.quick and attention_by.kernel is None else 1]

    def work(at: int) -> Work:
        chosen = [name for name in features if judge.rng.random() < 0.3]
        chosen = chosen if at >= 2 and go_together(chosen) else []
        return judge.work(problem_with([*chosen, "lse"], judge.rng, (6, 48)[at % 2], (8, 64)[at % 2]))

    assert_same_bits_together([work(at) for at in range(THREADS)])


@pytest.mark.parametrize("length", [48, 700])
def test_calls_that_share_their_arguments_give_the_same_bits(first: Judge, attention_by: ComputedBy, length: int) -> None:
    """An argument that is changed for a moment, and then put back, is seen by the other threads."""
    problem = problem_with([*{"causal", "lse"} & attention_by.handles], first.rng, length, 64, batch="none", kv_heads=1)
    assert_same_bits_together([first.work(problem)] * THREADS)


def test_a_piece_gives_the_same_bits(first: Judge, piece_by: ComputedBy) -> None:
    problems = list(piece_problems(piece_by.op, first.rng))
    assert_same_bits_together([first.work(problems[at % len(problems)]) for at in range(THREADS)])


def test_calls_of_one_shape_do_not_mix(judge: Judge, attention_by: ComputedBy) -> None:
    """Calls of one shape with different arrays, in threads that switch as often as possible.

    About ten calls detected a kernel that keeps its scores in an array shared by all threads.
    """
    problems = [[judge.array(judge.rng.normal(size=(2, 4, 32, 8))) for _ in range(3)] for _ in range(4)]
    works = [lambda arrays=arrays: judge.bits(mha.attention_state(*arrays)) for arrays in problems]
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        assert_same_bits_together(works, times=judge.count(1000))
    finally:
        sys.setswitchinterval(before)
