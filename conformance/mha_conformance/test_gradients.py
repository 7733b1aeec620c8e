"""Gradients of attention and of the pieces by ``mha.vjp``: the kernels that compute them, and the algebra.

The gradients of an operation are an operation too, ``attention_vjp`` and so on, with kernels of their own. Each kernel is
demanded by name for problems of a covering design: those of attention, towards out, lse, or both, with the gradients of some
arguments. Keys that no query sees, and what is given for queries that see nothing, hold NaN.
"""

from __future__ import annotations

from functools import partial
from itertools import combinations
from typing import Any

import numpy as np
import pytest

import mha_core as mha
from mha_core.plugin import Kernel
from mha_core.shared import ALGEBRA
from mha_core.shared import FEATURES as EVERY

from .cases.attention_gradients import AttentionGradientProblem, attention_gradient_problem, plain_row
from .cases.attention_problem import ARGUMENTS
from .cases.features import FEATURES
from .cases.kinds import Row
from .cases.masks import array
from .cases.piece_gradients import DIFFERENTIABLE
from .judge.attention import judge_large_gradients
from .judge.designed import judge_design
from .judge.held import Judge
from .judge.layouts import VIEWS
from .judge.same_bits import Work, assert_same_bits_together
from .probes.computed_by import ComputedBy
from .probes.recorder import Recording, assert_declares_known_features, recording_of, skip_if_never_run

pytestmark = pytest.mark.promise(0)
OP = "attention_vjp"
ROWS: dict[str, Row] = {
    **{name: row for name, row in FEATURES.items() if name in EVERY[OP]},
    "weight_dropout": {"weight_dropout": 0.25},
    "d_lse": {"towards": "both"},
    "d_bias": {"bias": "heads", "d_bias": True},
    "d_sink": {"sink": "small", "d_sink": True},
}
"""For each feature, what a problem has that uses it."""
_NEEDED = {"d_bias": "bias", "d_sink": "sink"}
"""Features without which another is never used."""


def problem(row: Row, rng: np.random.Generator) -> AttentionGradientProblem:
    return attention_gradient_problem(row, rng, rng)


def state_of(out: Any, lse: Any = None) -> mha.AttentionState:
    return mha.AttentionState(out, lse)


# by each kernel and the algebra


@pytest.mark.promise(0, 6, 7, 8, 12, 14)
def test_a_kernel_on_problems_of_a_covering_design(judge: Judge, vjp_kernel: Kernel) -> None:
    judge_design(judge, OP, vjp_kernel.name, vjp_kernel.handles).assert_computed()


@pytest.mark.promise(0, 12, 14)
def test_a_kernel_of_a_piece_on_calls_of_a_covering_design(judge: Judge, piece_vjp_kernel: Kernel) -> None:
    judge_design(judge, piece_vjp_kernel.op, piece_vjp_kernel.name, piece_vjp_kernel.handles).assert_computed()


@pytest.mark.promise(0, 6, 7, 8, 12, 14)
@pytest.mark.parametrize("op", ["attention", *DIFFERENTIABLE])
def test_the_algebra_on_problems_of_a_covering_design(judge: Judge, op: str) -> None:
    judge_design(judge, f"{op}_vjp", ALGEBRA, EVERY[f"{op}_vjp"]).assert_computed()


def test_more_scores_than_are_computed_at_once(wide: Judge, vjp_by: ComputedBy) -> None:
    if wide.quick:
        pytest.skip("quick runs judge small problems only")
    judge_large_gradients(wide, vjp_by.handles)


@pytest.mark.promise(6)
def test_every_declared_feature_is_known(vjp_kernel: Kernel) -> None:
    assert_declares_known_features(vjp_kernel)


def recorded_problem(judge: Judge, kernel: Kernel, features: tuple[str, ...]) -> Recording:
    """Judge a problem with these features, and no others, while the kernel is preferred."""
    row = plain_row(())
    for name in ROWS:
        row |= ROWS[name] if name in features else {}
    made = problem(row, judge.rng)
    return recording_of(kernel, partial(judge.judge_once, poison=True), [made])


@pytest.mark.promise(6)
@pytest.mark.parametrize("feature", ROWS)
def test_a_declared_feature_works_and_an_undeclared_one_is_refused(first: Judge, vjp_kernel: Kernel, feature: str) -> None:
    """The kernel must never be called for a feature that it does not declare, alone or with any that it does."""
    declared = feature in vjp_kernel.handles
    others = [name for name in ROWS if name in vjp_kernel.handles and name != feature]
    if feature in ("alibi", "relative_bias", "bias_term", "score_function", "bias", "d_bias"):
        others = [name for name in others if ROWS[name].get("bias") is None]
    recordings = []
    for also in ((), *((name,) for name in others[:: 4 if first.quick else 1])):
        chosen = {feature, *also} | {_NEEDED[name] for name in (feature, *also) if name in _NEEDED}
        if {"causal", "window"} <= chosen:
            continue
        recording = recorded_problem(first, vjp_kernel, tuple(chosen))
        assert any(feature in call.features for call in recording.seen), f"core did not name {feature}"
        assert declared or not recording.runs, f"the kernel does not declare {feature}, but was called"
        recordings.append(recording)
    if declared:
        skip_if_never_run(recordings)


# what is wanted, and what is given


@pytest.mark.promise(6)
@pytest.mark.parametrize("bias", ["heads", "keys", "relative"])
def test_every_subset_of_gradients(wide: Judge, vjp_by: ComputedBy, bias: str) -> None:
    seed, features = int(wide.rng.integers(2**32)), vjp_by.handles
    given = {"bias": bias} if {"bias", "relative_bias", "d_bias"} <= features else {}
    given |= {"sink": "small"} if {"sink", "d_sink"} <= features else {}
    wanted = [*ARGUMENTS, *given]
    subsets = [some for size in range(1, len(wanted) + 1) for some in combinations(wanted, size)]
    for some in subsets[:: 6 if wide.quick else 1]:
        options = {f"d_{name}": name in some for name in ("bias", "sink")}
        row = plain_row(features, **given, wanted=", ".join({*ARGUMENTS} & {*some}), **options)
        made = problem(row, np.random.default_rng(seed))
        assert made.wanted == {*some}
        wide.judge_once(made, poison=True)


@pytest.mark.promise(12)
def test_d_out_may_have_any_strides(wide: Judge, vjp_by: ComputedBy) -> None:
    made, judge = problem(plain_row(vjp_by.handles), wide.rng), wide
    for layout in (*VIEWS, "read-only", "unaligned"):
        layouts = {name: layout for name in made.floats if name.startswith("d_")}
        judge.judge_once(made, poison=True, layouts=layouts)
    made.floats["d_out"] = np.broadcast_to(wide.rng.normal(), made.floats["d_out"].shape).copy()
    arrays, floats = judge.arrays(made)
    arrays["d_out"] = wide.xp.broadcast_to(arrays["d_out"][:1, :1, :1, :1], arrays["d_out"].shape)
    judge.assert_right(made.call(arrays), arrays["query"], made, floats)


@pytest.mark.promise(7)
def test_what_nobody_sees_changes_no_bit_and_has_gradients_of_zero(judge: Judge, vjp_by: ComputedBy) -> None:
    """Keys 5 and 6 are seen by nobody, and query 1 sees nothing. With a sink, and without."""
    seen = np.ones((7, 7), dtype=bool)
    seen[:, 5:] = seen[1] = False
    for sink in ("none", *(["small"] if {"sink", "d_sink"} <= vjp_by.handles else [])):
        made = problem(plain_row(vjp_by.handles | {"array_mask"}, array="scores", sink=sink), judge.rng)
        made.settings.masks.clear()
        made.settings.add_mask(array(seen))
        made.others.update(made.settings.others)
        clean = judge.assert_poison_changes_no_bit(made)
        got = {name: judge.numpy(x) for name, x in clean.items()}
        assert not got["d_query"][..., 1, :].any(), "a query that sees nothing has a gradient"
        assert not got["d_key"][..., 5:, :].any() and not got["d_value"][..., 5:, :].any(), "an unseen key has a gradient"


@pytest.mark.promise(8)
@pytest.mark.parametrize("empty", ["batch", "queries", "keys", "head_dim", "value_dim"])
def test_empty_axes(judge: Judge, vjp_by: ComputedBy, empty: str) -> None:
    """Gradients have the shapes of their arrays; without a sink, all are 0, except of values if heads have no width."""
    sizes = {"batch": 2, "queries": 3, "keys": 4, "head_dim": 5, "value_dim": 6} | {empty: 0}
    batch, queries, keys, width, of_value = sizes.values()
    shapes = [(batch, 2, queries, width), (batch, 2, keys, width), (batch, 2, keys, of_value)]
    arrays = [judge.array(judge.rng.normal(size=shape)) for shape in shapes]
    state, pullback = mha.vjp(mha.attention_state, *arrays)
    d_out, d_lse = (judge.xp.ones_like(x) for x in state)
    for d in (state_of(d_out, d_lse), state_of(d_out)):
        for name, x, gradient in zip(ARGUMENTS, arrays, pullback(d), strict=True):
            judge.assert_like(gradient, x)
            assert tuple(gradient.shape) == tuple(x.shape), f"the gradient of {name} has another shape"
            zero = not (empty == "head_dim" and name == "value") and not (empty == "value_dim" and d.lse is not None)
            assert not zero or not judge.numpy(gradient).any(), f"the gradient of {name} is not 0"


def test_two_axes_are_one_head(wide: Judge) -> None:
    arrays = [wide.array(wide.rng.normal(size=shape)) for shape in ((5, 4), (6, 4), (6, 3), (5, 3), (5,))]
    *given, d_out, d_lse = arrays
    *with_heads, d_out_of_head, d_lse_of_head = (x[None, ...] for x in arrays)
    gradients = mha.vjp(mha.attention_state, *given)[1](mha.AttentionState(d_out, d_lse))
    expected = mha.vjp(mha.attention_state, *with_heads)[1](state_of(d_out_of_head, d_lse_of_head))
    for x, gradient, of_head in zip(given, gradients, expected, strict=True):
        assert tuple(gradient.shape) == tuple(x.shape)
        np.testing.assert_array_equal(wide.numpy(gradient), wide.numpy(of_head)[0])


@pytest.mark.promise(14)
def test_a_pullback_gives_the_same_bits_again(judge: Judge, vjp_by: ComputedBy) -> None:
    """Twice in a row, after other gradients, and after another call."""
    query, key, value, d_out, other = (judge.array(judge.rng.normal(size=(2, 3, 9, 8))) for _ in range(5))
    _, pullback = mha.vjp(mha.scaled_dot_product_attention, query, key, value)

    def bits(d: Any) -> bytes:
        return judge.bits(tuple(pullback(d)))

    first = bits(d_out)
    assert bits(d_out) == first, "the second time, a pullback gave other bits"
    of_other = bits(other)
    mha.vjp(mha.scaled_dot_product_attention, key, query, value)[1](other)
    assert bits(d_out) == first and bits(other) == of_other, "after other calls, a pullback gave other bits"


@pytest.mark.promise(14)
def test_threads_give_the_same_bits(judge: Judge, vjp_by: ComputedBy) -> None:
    """Different problems at the same time, with the features that a kernel declares, or with all."""

    def work(at: int) -> Work:
        row = plain_row(vjp_by.handles, queries=(6, 48)[at % 2], head_dim=(8, 64)[at % 2])
        features = [name for name in ROWS if name in vjp_by.handles and name not in _NEEDED]
        chosen = [name for name in features if judge.rng.random() < 0.2]
        for name in chosen if at >= 2 else ():
            row |= {key: value for key, value in ROWS[name].items() if not key.startswith("d_")}
        return judge.work(problem(row, judge.rng))

    works = [work(at) for at in range(4 if judge.quick else 8)]
    assert_same_bits_together((works * 2)[:8])


@pytest.mark.promise(15)
def test_a_wrong_d_out_is_named(wide: Judge, vjp_by: ComputedBy) -> None:
    """A wrong shape, dtype or library is an error; for a state, also that of lse. No kernel is asked."""
    x = wide.array(np.ones((2, 3, 4)))
    out, pullback = mha.vjp(mha.scaled_dot_product_attention, x, x, x)
    state, pull_state = mha.vjp(mha.attention_state, x, x, x)
    other = "float32" if wide.dtype == "float64" else "float64"
    wrong: list[tuple[Any, Any]] = [
        (out[..., :2], ValueError), (out[0, ...], ValueError), (wide.array(np.ones((2, 3, 4), dtype=int)), TypeError),
        ([[1.0]], TypeError), (1.0, (TypeError, ValueError)), (state_of(out), TypeError),
    ]  # fmt: skip
    if other in wide.dtypes:
        wrong.append((wide.array(np.ones((2, 3, 4)), other), TypeError))
    for d, error in wrong:
        with pytest.raises(error, match="d_out"):
            pullback(d)
    for d in (out, state_of(out, out), state_of(out[..., :2]), (out, state.lse, out)):
        with pytest.raises((TypeError, ValueError), match="d_out"):
            pull_state(d)
    assert not vjp_by.seen, "a kernel was asked before d_out was checked"
