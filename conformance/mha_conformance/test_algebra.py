"""Attention on random problems, by the kernel that is chosen or by the algebra, against a float64 oracle.

Every mask with every option, grouped heads, broadcasting batches, empty axes; ordinary scores, and scores eight times as large.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import mha_core as mha

from .backend import BackendUnderTest
from .cases.features import FEATURES, go_together, problem_with
from .cases.problems import Limits
from .judge.attention import judge_large_batch
from .judge.held import Judge
from .judge.random_problems import judge_problems
from .oracle import tolerance
from .probes.computed_by import ComputedBy

pytestmark = pytest.mark.promise(0)
TIMES = pytest.mark.parametrize("times", [1, 8])


@TIMES
def test_random_problems_equal_the_oracle(backend: BackendUnderTest, dtype: str, rng: np.random.Generator, times: int) -> None:
    judge_problems(backend, rng, 500, dtype, limits=Limits(times=times))


@TIMES
def test_longer_problems_equal_the_oracle(backend: BackendUnderTest, dtype: str, rng: np.random.Generator, times: int) -> None:
    judge_problems(backend, rng, 100, dtype, limits=Limits(times=times, longest=40, widest=64))


@pytest.mark.promise(0, 6)
@TIMES
@pytest.mark.parametrize("feature", ["lse", *(name for name in FEATURES if name != "lse")])
def test_each_option_alone(backend: BackendUnderTest, dtype: str, rng: np.random.Generator, feature: str, times: int) -> None:
    """In shapes that fast kernels prefer: as many queries as keys, and a width of 64."""
    if backend.quick and times == 8:
        pytest.skip("quick runs do not multiply the scores here")
    scores = "plain" if times == 1 else "wide"
    for lse in (True,) if backend.quick else (True, False):
        Judge(backend, dtype).judge_once(problem_with([feature], rng, 33, 64, scores=scores, lse=lse))


@pytest.mark.promise(0, 6)
def test_options_together(backend: BackendUnderTest, dtype: str, rng: np.random.Generator) -> None:
    for _ in range(5 if backend.quick else 200):
        chosen = [name for name in FEATURES if rng.random() < 0.4]
        if go_together(chosen):
            Judge(backend, dtype).judge_once(problem_with(chosen, rng, 9, 16))


def test_a_large_batch(backend: BackendUnderTest, attention_by: ComputedBy, dtype: str, rng: np.random.Generator) -> None:
    if backend.quick:
        pytest.skip("quick runs judge small problems only")
    judge_large_batch(backend, dtype, rng)


def test_one_query_at_a_time(backend: BackendUnderTest, dtype: str, rng: np.random.Generator) -> None:
    """Decoding: a single query at the end of many keys. Libraries often have kernels for this shape."""
    query, key, value = (backend.rounded(rng.normal(size=(2, 4, n, 64)), dtype) for n in (1, 200, 200))
    exact = backend.exact_attention(query, key, value, dtype=dtype)
    arrays = [backend.array(x, dtype) for x in (query, key, value)]
    decoding: list[dict[str, Any]] = [{}, {"mask": mha.causal(), "query_offset": 199}]
    for options in decoding:
        out = mha.scaled_dot_product_attention(*arrays, **options)
        exact.assert_near(backend.numpy(out))


@pytest.mark.promise(0, 3)
def test_weights_equal_the_oracle(backend: BackendUnderTest, dtype: str, rng: np.random.Generator) -> None:
    judge_problems(backend, rng, 200, dtype, check="weights", limits=Limits(times=1))


def test_states_over_parts_of_the_keys_merge(backend: BackendUnderTest, dtype: str, rng: np.random.Generator) -> None:
    query, key, value = (backend.rounded(rng.normal(size=(2, 3, n, 8)), dtype) for n in (5, 12, 12))
    exact = backend.exact_attention(query, key, value, dtype=dtype)
    q, k, v = (backend.array(x, dtype) for x in (query, key, value))
    parts = [mha.attention_state(q, k[..., s, :], v[..., s, :]) for s in (slice(0, 0), slice(0, 5), slice(5, 6), slice(6, 12))]
    merged = mha.merge_states(*parts)
    # each part is rounded to the dtype of the values, and each merge rounds again in the compute dtype
    u, wide = tolerance.UNIT_ROUNDOFF[dtype], tolerance.UNIT_ROUNDOFF[tolerance.compute_dtype(dtype)]
    extra = (u + 16 * wide) * (exact.weights @ np.abs(value))
    tolerance.assert_within("out", backend.numpy(merged.out), exact.out, exact.out_bound + extra)
    tolerance.assert_within("lse", backend.numpy(merged.lse), exact.lse, 2 * exact.lse_bound + 16 * wide)


@pytest.mark.promise(8)
def test_the_state_over_no_keys_changes_no_bit(backend: BackendUnderTest, dtype: str, rng: np.random.Generator) -> None:
    q, k = (backend.array(rng.normal(size=(2, 3, n, 8)), dtype) for n in (5, 6))
    some, none = mha.attention_state(q, k, k), mha.attention_state(q, k[..., :0, :], k[..., :0, :])
    for first, second, expected in ((some, none, some), (none, some, some), (none, none, none)):
        for got, wanted in zip(mha.merge_states(first, second), expected, strict=True):
            np.testing.assert_array_equal(backend.numpy(got), backend.numpy(wanted))
