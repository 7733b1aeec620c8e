"""Attention weights by what is chosen, by each kernel of ``attention_weights``, and by the algebra, against the oracle.

Random problems, each feature alone and several together, given or computed lse, and parts of the rows and columns; and the
promises that concern weights.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations, product
from typing import Any

import numpy as np
import pytest

import mha_core as mha
from mha_core.plugin import Kernel
from mha_core.shared import FEATURES as EVERY

from .backend import BackendUnderTest
from .cases.attention_problem import AttentionProblem
from .cases.features import FEATURES, go_together, problem_with
from .cases.masked_rows import masked_rows
from .cases.problems import Limits
from .cases.weights import weights_of
from .judge.held import Judge, noted
from .judge.layouts import VIEWS
from .judge.random_problems import judge_problems
from .judge.same_bits import Work, assert_same_bits, assert_same_bits_together
from .probes.computed_by import ComputedBy
from .probes.recorder import assert_declares_known_features

SECTION = "kernels"
pytestmark = pytest.mark.promise(0)
OF_WEIGHTS = [name for name in FEATURES if name in EVERY["attention_weights"]]
SHAPES = [(6, 8), (48, 64)]  # (length, width): a small one, and one for kernels that need round numbers
PARTS: dict[str, dict[str, Any]] = {
    "all": {},
    "slices": {"rows": slice(1, 5), "cols": slice(0, None, 2)},
    "indices": {"rows": [0, 5, 2], "cols": [3, -1, 3]},
    "one row": {"rows": [4]},
    "some columns": {"cols": slice(2, 4)},
    "none": {"rows": [], "cols": slice(0, 0)},
}
"""Rows and columns to select, in calls of at least six queries and keys."""


def tried(weights_by: ComputedBy) -> Iterator[list[str]]:
    """Yield no feature, each feature that the kernel declares, and all pairs that go together."""
    declared = [name for name in OF_WEIGHTS if name in weights_by.handles]
    yield from ([], *([name] for name in declared))
    yield from (list(pair) for pair in combinations(declared, 2) if go_together(pair))


def judge_call(judge: Judge, call: AttentionProblem, parts: Sequence[str] = tuple(PARTS)) -> None:
    """Judge the weights of a call, with and without lse, all of them and some."""
    call = call.map(lambda x: judge.rounded(x))
    for name, lse in product(parts, (False, True)):
        with noted(f"rows and cols: {name}; lse is {'given' if lse else 'not given'}"):
            judge.judge_once(weights_of(call, PARTS[name], lse=lse))


@pytest.mark.promise(6)
def test_every_declared_feature_is_known(weights_kernel: Kernel) -> None:
    assert_declares_known_features(weights_kernel)


def test_random_problems_equal_the_oracle(judge: Judge, weights_by: ComputedBy) -> None:
    judge_problems(judge, 200, check="weights", limits=Limits(times=1))


@pytest.mark.promise(0, 6)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_features_alone_and_in_pairs(judge: Judge, weights_by: ComputedBy, shape: tuple[int, int]) -> None:
    """A call that uses a feature which the kernel does not declare must not reach it, which the recorder checks."""
    chosen = list(tried(weights_by))
    alone = [features for features in chosen if len(features) < 2]
    pairs = chosen[len(alone) :]
    judge.rng.shuffle(pairs)
    few = judge.quick and weights_by.kernel is None  # some libraries compile every operation again for every new shape
    for features in (*alone[:: 5 if few else 1], *pairs[: 1 if few else judge.count(len(pairs))]):
        for scores in ("plain",) if judge.quick else ("plain", "wide"):
            call = problem_with(features, judge.rng, *shape, scores=scores)
            parts = tuple(PARTS) if len(features) < (1 if few else 2) and scores == "plain" else ("all", "indices")
            with noted(f"the features: {' and '.join(features) or 'none'}; {scores} scores"):
                judge_call(judge, call, parts)


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


@pytest.mark.promise(12)
@pytest.mark.parametrize("view", VIEWS)
def test_12_strides_do_not_matter(judge: Judge, weights_by: ComputedBy, view: str) -> None:
    for shape, lse in product(SHAPES, (False, True)):
        call = problem_with([], judge.rng, *shape, layout=view).map(lambda x: judge.rounded(x))
        judge.judge_once(weights_of(call, lse=lse))


def works(judge: Judge, weights_by: ComputedBy) -> Iterator[Work]:
    """Yield calls without options, and with each feature that the kernel declares; every other one is given lse."""
    for at, features in enumerate(features for features in tried(weights_by) if len(features) < 2):
        call = problem_with(features, judge.rng, *SHAPES[at % 2]).map(lambda x: judge.rounded(x))
        yield judge.work(weights_of(call, lse=bool(at % 2)))


@pytest.mark.promise(14)
def test_14_equal_calls_give_the_same_bits(judge: Judge, weights_by: ComputedBy) -> None:
    assert_same_bits({f"call {at}": work for at, work in enumerate(works(judge, weights_by))})


@pytest.mark.promise(14)
def test_14_threads_give_the_same_bits(judge: Judge, weights_by: ComputedBy) -> None:
    calls = list(works(judge, weights_by))
    assert_same_bits_together([calls[at % len(calls)] for at in range(8)])
