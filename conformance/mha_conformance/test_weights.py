"""Attention weights by each kernel of ``attention_weights``, and by the algebra, against the oracle.

Problems of a covering design, with lse given or computed, and parts of the rows and columns; and the promises that concern
weights, also by what is chosen.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest

import mha_core as mha
from mha_core.plugin import Kernel
from mha_core.shared import ALGEBRA
from mha_core.shared import FEATURES as EVERY

from .backend import BackendUnderTest
from .cases.features import FEATURES, row_with
from .cases.kinds import Row
from .cases.masked_rows import masked_rows
from .cases.weights import WeightsProblem, weights_problem
from .judge.designed import judge_design
from .judge.held import Judge
from .judge.same_bits import assert_same_bits_together
from .probes.computed_by import ComputedBy
from .probes.recorder import assert_declares_known_features, recording_of

SECTION = "kernels"
OP = "attention_weights"
OF_WEIGHTS = [name for name in FEATURES if name in EVERY[OP]]
SHAPES: list[Row] = [{"queries": 6, "head_dim": 8}, {"queries": 48, "head_dim": 64}]
"""A small shape, and one for kernels that need round numbers."""
PARTS: dict[str, dict[str, Any]] = {
    "all": {},
    "slices": {"rows": slice(1, 5), "cols": slice(0, None, 2)},
    "indices": {"rows": [0, 5, 2], "cols": [3, -1, 3]},
    "none": {"rows": [], "cols": slice(0, 0)},
}
"""Rows and columns of six."""


def problem_of(features: Iterable[str], judge: Judge, at: int = 0) -> WeightsProblem:
    """Draw a problem that uses these features; every other one is given lse and is of the other shape."""
    row = row_with(features, rows="all", cols="all", lse=bool(at % 2), **SHAPES[at % 2])
    return weights_problem(row, judge.rng, judge.rng)


@pytest.mark.promise(6)
def test_every_declared_feature_is_known(weights_kernel: Kernel) -> None:
    assert_declares_known_features(weights_kernel)


@pytest.mark.promise(0, 3, 6, 7, 8, 12, 14)
def test_a_kernel_on_problems_of_a_covering_design(judge: Judge, weights_kernel: Kernel) -> None:
    judge_design(judge, OP, weights_kernel.name, weights_kernel.handles).assert_computed()


@pytest.mark.promise(0, 3, 6, 7, 8, 12, 14)
def test_the_algebra_on_problems_of_a_covering_design(judge: Judge) -> None:
    judge_design(judge, OP, ALGEBRA, EVERY[OP]).assert_computed()


@pytest.mark.promise(6)
@pytest.mark.parametrize("feature", OF_WEIGHTS)
def test_an_undeclared_feature_is_refused(first: Judge, weights_kernel: Kernel, feature: str) -> None:
    if feature in weights_kernel.handles:
        pytest.skip(f"the kernel declares {feature}")
    recording = recording_of(weights_kernel, first.judge_once, [problem_of([feature], first)])
    assert any(feature in call.features for call in recording.seen), f"core did not name {feature}"
    assert not recording.runs, f"the kernel does not declare {feature}, but was called"


@pytest.mark.promise(1)
@pytest.mark.parametrize("sink", [False, True], ids=["without sink", "with sink"])
def test_1_the_weights_of_a_fully_masked_row_are_zero(judge: Judge, weights_by: ComputedBy, sink: bool) -> None:
    query, key = (judge.array(judge.rng.normal(size=(2, 4, 6, 8))) for _ in range(2))
    given: dict[str, Any] = {"sink": judge.array(judge.rng.normal(size=4))} if sink else {}
    for rows in masked_rows(2, 6, 6):
        options = {"mask": rows.mask(judge.array), "query_offset": rows.offset, **given}
        lse = mha.attention_state(query, key, key, **options).lse
        for known in (None, lse):
            weights = judge.numpy(mha.attention_weights(query, key, known, **options))
            empty = np.broadcast_to(rows.masked, weights.shape[:-1])
            assert (weights[empty] == 0).all(), f"{rows.feature}, {'with' if known is not None else 'without'} lse"
            assert (weights[~empty].sum(axis=-1) > 0).all(), rows.feature


@pytest.mark.promise(3)
def test_3_a_masked_key_has_no_weight_however_low_the_others_are(float32: Judge, weights_by: ComputedBy) -> None:
    """Scores are -1e38: a finite number in place of a masked one would be the greatest."""
    query, key = np.zeros((2, 2, 4, 6, 8))
    query[..., 0], key[..., 0] = 1e19, -1e19
    q, k = np.arange(6)[:, None], np.arange(6)[None, :]
    for mask, allowed in ((mha.causal(), k <= q), (mha.array_mask(float32.array(k % 2 == q % 2)), k % 2 == q % 2)):
        arrays = (float32.array(x) for x in (query, key))
        weights = float32.numpy(mha.attention_weights(*arrays, mask=mask, scale=1.0))
        expected = allowed / allowed.sum(axis=-1, keepdims=True)
        np.testing.assert_allclose(weights, np.broadcast_to(expected, weights.shape), rtol=1e-6, atol=0)


@pytest.mark.promise(7)
def test_7_poison_changes_no_bit(judge: Judge, weights_by: ComputedBy) -> None:
    query, key = judge.array(judge.rng.normal(size=(2, 4, 6, 8))), judge.rng.normal(size=(2, 4, 6, 8))
    masks: list[tuple[Any, list[int], int]] = [
        (mha.prefix(4), [4, 5], 0),
        (mha.causal(), [4, 5], -2),
        (mha.window(0, None), [0, 1], 2),
        (judge.array(np.arange(6) % 3 != 1), [1, 4], 0),
        (mha.causal() | mha.prefix(2), [4, 5], -2),
    ]
    for mask, hidden, offset in masks:
        poisoned = key.copy()
        poisoned[..., hidden, :] = [np.nan, np.inf] * 4
        for part in PARTS.values():
            clean, other = (
                mha.attention_weights(query, judge.array(keys), mask=mask, query_offset=offset, **part)
                for keys in (key, poisoned)
            )
            assert judge.bits(clean) == judge.bits(other), "keys that no query may see changed the weights"


@pytest.mark.promise(8)
def test_8_empty_axes_work(judge: Judge, weights_by: ComputedBy) -> None:
    def weights(*shapes: tuple[int, ...], **options: Any) -> np.ndarray:
        return judge.numpy(mha.attention_weights(*(judge.array(np.ones(shape)) for shape in shapes), **options))

    assert weights((2, 3, 4), (2, 0, 4)).shape == (2, 3, 0)
    assert weights((2, 0, 4), (2, 3, 4)).shape == (2, 0, 3)
    assert weights((0, 2, 3, 4), (0, 2, 3, 4), mask=mha.causal()).shape == (0, 2, 3, 3)
    assert (weights((2, 3, 4), (2, 3, 4), mask=mha.prefix(0)) == 0).all()
    assert (weights((1, 2, 0), (1, 4, 0)) == 0.25).all()


@pytest.mark.promise(9)
def test_9_half_precision_accumulates_in_float32(backend: BackendUnderTest, weights_by: ComputedBy) -> None:
    """Scores of 300 * 300 * 64 overflow float16."""
    half = [dtype for dtype in backend.dtypes if dtype in ("float16", "bfloat16")]
    if not half:
        pytest.skip("the backend lacks half precision, or it is not judged")
    for dtype in half:
        query, key = (backend.array(np.full((1, n, 64), 300.0), dtype) for n in (2, 4))
        assert (backend.numpy(mha.attention_weights(query, key)) == 0.25).all()


@pytest.mark.promise(14)
def test_14_threads_give_the_same_bits(judge: Judge, weights_by: ComputedBy) -> None:
    """The calls use no option, or one feature that the kernel declares; every other one is given lse."""
    features = [[], *([name] for name in OF_WEIGHTS if name in weights_by.handles)]
    calls = [judge.work(problem_of(some, judge, at)) for at, some in enumerate(features)]
    assert_same_bits_together([calls[at % len(calls)] for at in range(8)])
