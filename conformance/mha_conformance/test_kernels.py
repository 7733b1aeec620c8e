"""Kernels of this backend: a declared feature must work, an undeclared one must be refused.

Each kernel is preferred to all others and recorded while public operations are called; the features of a call are those that
core names for it. A kernel whose ``supports`` refuses every call is skipped with its reasons: it may be for another device.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import combinations, product
from typing import Any

import pytest

import mha_core as mha
from mha_core.plugin import Kernel

from .cases.attention_problem import ARGUMENTS
from .cases.features import ALL_FEATURES, FEATURES, go_together, problem_with
from .cases.pieces import piece_problems
from .judge.held import Judge
from .oracle.attention_gradients import attention_gradients
from .oracle.tolerance import assert_within
from .probes.recorder import Recording, assert_declares_known_features, recorded, recording_of, skip_if_never_run

SHAPES = [(3, 8), (6, 8), (48, 64)]
"""(length, width): small ones, and one for kernels that need round numbers."""


def judge_with(judge: Judge, kernel: Kernel, features: Iterable[str]) -> Recording:
    """Judge a call that uses these features, with this kernel preferred to all others; with lse if the kernel declares it."""
    return recording_of(kernel, judge.judge_once, [problem_with({*features, *({"lse"} & kernel.handles)}, judge.rng)])


def judge_in_shapes(judge: Judge, kernel: Kernel, *features: str) -> None:
    given = {*features, *({"lse"} & kernel.handles)}
    every = product(SHAPES, ("plain", "wide"))
    problems = [problem_with(given, judge.rng, *shape, scores=scores) for shape, scores in every]
    skip_if_never_run([recording_of(kernel, judge.judge_once, problems)])


@pytest.mark.promise(6)
def test_every_declared_feature_is_known(attention_kernel: Kernel) -> None:
    assert_declares_known_features(attention_kernel)


@pytest.mark.promise(0)
def test_plain_attention(judge: Judge, attention_kernel: Kernel) -> None:
    judge_in_shapes(judge, attention_kernel)


@pytest.mark.promise(6)
@pytest.mark.parametrize("feature", FEATURES)
def test_a_declared_feature_works(judge: Judge, attention_kernel: Kernel, feature: str) -> None:
    if feature not in attention_kernel.handles:
        pytest.skip(f"the kernel does not declare {feature}")
    judge_in_shapes(judge, attention_kernel, feature)


@pytest.mark.promise(6)
def test_pairs_of_declared_features_work(judge: Judge, attention_kernel: Kernel) -> None:
    declared = [name for name in FEATURES if name in attention_kernel.handles]
    pairs = [pair for pair in combinations(declared, 2) if go_together(pair)]
    judge.rng.shuffle(pairs)
    if not pairs:
        pytest.skip("the kernel declares no two features that go together")
    chosen = pairs[: judge.count(len(pairs))]
    skip_if_never_run([judge_with(judge, attention_kernel, pair) for pair in chosen])


@pytest.mark.promise(6)
@pytest.mark.parametrize("feature", [name for name in FEATURES if name != "lse"])
def test_an_undeclared_feature_is_refused(first: Judge, attention_kernel: Kernel, feature: str) -> None:
    """The kernel must never be called for the feature, alone or with any declared feature that goes together with it.

    Core may widen keys in int8, and call it for their floating numbers: another call, without the feature.
    """
    if feature in attention_kernel.handles:
        pytest.skip(f"the kernel declares {feature}")
    declared = [name for name in FEATURES if name in attention_kernel.handles and go_together((name, feature))]
    for others in ([], *([name] for name in declared)):
        recording = judge_with(first, attention_kernel, [feature, *others])
        assert any(feature in call.features for call in recording.seen), f"core did not name {feature}"
        declared_calls = [call for call in recording.seen if call.features <= attention_kernel.handles]
        assert not recording.runs or declared_calls, f"the kernel does not declare {feature}, but was called"


@pytest.mark.promise(0, 6)
def test_a_gradient_is_right_whoever_computes_it(wide: Judge, attention_kernel: Kernel) -> None:
    """A kernel that does not declare ``gradient`` must not be called while one is recorded: its result would have none."""
    call = problem_with([], wide.rng).map(lambda x: wide.rounded(x))
    arrays = [wide.array(x) for x in call.floats.values()]
    if wide.loaded.features is None or not all(hasattr(x, "requires_grad_") for x in arrays):
        pytest.skip("the backend does not record gradients by requires_grad_ and backward")
    arrays = [x.requires_grad_() for x in arrays]
    towards = wide.normal(call.query.shape)
    with recorded(attention_kernel, ALL_FEATURES) as recording:
        out = mha.scaled_dot_product_attention(*arrays)
        (out * wide.array(towards)).sum().backward()
    recording.assert_given_what_it_declares()
    assert "gradient" in attention_kernel.handles or not recording.runs
    settings: dict[str, Any] = {"dtype": wide.dtype, "rounds_weights": wide.rounds_weights}
    expected = attention_gradients(call.query, call.key, call.value, towards, **settings)
    for name, x in zip(ARGUMENTS, arrays, strict=True):
        assert_within(f"d_{name}", wide.numpy(x.grad), *expected[name])


@pytest.mark.promise(0)
def test_a_kernel_of_a_piece(judge: Judge, piece_kernel: Kernel) -> None:
    skip_if_never_run([recording_of(piece_kernel, judge.judge_once, piece_problems(piece_kernel.op, judge.rng))])
