"""Attention by the kernel that is chosen or by the algebra: options alone and together, decoding, states that merge."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import mha_core as mha

from .cases.features import FEATURES, go_together, problem_with
from .judge.attention import judge_large_batch
from .judge.held import Judge
from .oracle import tolerance
from .probes.computed_by import ComputedBy

pytestmark = pytest.mark.promise(0)
TIMES = pytest.mark.parametrize("times", [1, 8])


@pytest.mark.promise(0, 6)
@TIMES
@pytest.mark.parametrize("feature", ["lse", *(name for name in FEATURES if name != "lse")])
def test_each_option_alone(judge: Judge, feature: str, times: int) -> None:
    """In shapes that fast kernels prefer: as many queries as keys, and a width of 64."""
    if judge.quick and times == 8:
        pytest.skip("quick runs do not multiply the scores here")
    scores = "plain" if times == 1 else "wide"
    for lse in (True,) if judge.quick else (True, False):
        judge.judge_once(problem_with([feature], judge.rng, 33, 64, scores=scores, lse=lse))


@pytest.mark.promise(0, 6)
def test_options_together(judge: Judge) -> None:
    for _ in range(5 if judge.quick else 200):
        chosen = [name for name in FEATURES if judge.rng.random() < 0.4]
        if go_together(chosen):
            judge.judge_once(problem_with(chosen, judge.rng, 9, 16))


def test_a_large_batch(judge: Judge, attention_by: ComputedBy) -> None:
    if judge.quick:
        pytest.skip("quick runs judge small problems only")
    judge_large_batch(judge)


def test_one_query_at_a_time(judge: Judge) -> None:
    """Decoding: a single query at the end of many keys. Libraries often have kernels for this shape."""
    query, key, value = (judge.normal((2, 4, n, 64)) for n in (1, 200, 200))
    exact = judge.exact_attention(query, key, value)
    arrays = [judge.array(x) for x in (query, key, value)]
    decoding: list[dict[str, Any]] = [{}, {"mask": mha.causal(), "query_offset": 199}]
    for options in decoding:
        out = mha.scaled_dot_product_attention(*arrays, **options)
        exact.assert_near(judge.numpy(out))


def test_states_over_parts_of_the_keys_merge(judge: Judge) -> None:
    query, key, value = (judge.normal((2, 3, n, 8)) for n in (5, 12, 12))
    exact = judge.exact_attention(query, key, value)
    q, k, v = (judge.array(x) for x in (query, key, value))
    parts = [mha.attention_state(q, k[..., s, :], v[..., s, :]) for s in (slice(0, 0), slice(0, 5), slice(5, 6), slice(6, 12))]
    merged = mha.merge_states(*parts)
    # each part is rounded to the dtype of the values, and each merge rounds again in the compute dtype
    u, wide = tolerance.UNIT_ROUNDOFF[judge.dtype], tolerance.UNIT_ROUNDOFF[tolerance.compute_dtype(judge.dtype)]
    extra = (u + 16 * wide) * (exact.weights @ np.abs(value))
    tolerance.assert_within("out", judge.numpy(merged.out), exact.out, exact.out_bound + extra)
    tolerance.assert_within("lse", judge.numpy(merged.lse), exact.lse, 2 * exact.lse_bound + 16 * wide)


@pytest.mark.promise(8)
def test_the_state_over_no_keys_changes_no_bit(judge: Judge) -> None:
    q, k = (judge.array(judge.rng.normal(size=(2, 3, n, 8))) for n in (5, 6))
    some, none = mha.attention_state(q, k, k), mha.attention_state(q, k[..., :0, :], k[..., :0, :])
    for first, second, expected in ((some, none, some), (none, some, some), (none, none, none)):
        for got, wanted in zip(mha.merge_states(first, second), expected, strict=True):
            np.testing.assert_array_equal(judge.numpy(got), judge.numpy(wanted))
