"""Attention on random problems against a float64 oracle: whatever runs by itself, kernel or algebra, must be right.

Every mask with every option, grouped heads, broadcasting batches, empty axes; scores as they come, and eight times as large.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import mha_core as mha

from . import tolerance
from .calls import FEATURES, go_together, plain, with_features
from .judge import judge_call
from .problems import Limits
from .smallest import judge_problems
from .subject import Subject

pytestmark = pytest.mark.promise(0)
TIMES = pytest.mark.parametrize("times", [1, 8])


@TIMES
def test_random_problems_equal_the_oracle(subject: Subject, dtype: str, rng: np.random.Generator, times: int) -> None:
    judge_problems(subject, rng, 500, dtype, limits=Limits(times=times))


@TIMES
def test_longer_problems_equal_the_oracle(subject: Subject, dtype: str, rng: np.random.Generator, times: int) -> None:
    judge_problems(subject, rng, 100, dtype, limits=Limits(times=times, longest=40, widest=64))


@pytest.mark.promise(0, 6)
@TIMES
@pytest.mark.parametrize("feature", ["lse", *(name for name in FEATURES if name != "lse")])
def test_each_option_alone(subject: Subject, dtype: str, rng: np.random.Generator, feature: str, times: int) -> None:
    """In shapes that fast kernels like: as many queries as keys, a width of 64."""
    if subject.quick and times == 8:
        pytest.skip("quick runs have scores as they come here")
    for wants_lse in (True,) if subject.quick else (True, False):
        call = with_features(plain(rng, 33, 64, times=times), [feature], rng)
        judge_call(subject, call, dtype, wants_lse=wants_lse)


@pytest.mark.promise(0, 6)
def test_options_together(subject: Subject, dtype: str, rng: np.random.Generator) -> None:
    for _ in range(5 if subject.quick else 200):
        chosen = [name for name in FEATURES if rng.random() < 0.4]
        if go_together(chosen):
            call = with_features(plain(rng, 9, 16), chosen, rng)
            judge_call(subject, call, dtype, wants_lse=bool(rng.random() < 0.5))


def test_one_query_at_a_time(subject: Subject, dtype: str, rng: np.random.Generator) -> None:
    """Decoding: a single query at the end of many keys, the shape with kernels of its own."""
    query, key, value = (subject.rounded(rng.normal(size=(2, 4, n, 64)), dtype) for n in (1, 200, 200))
    exact = tolerance.exact_attention(query, key, value, dtype=dtype, rounds_weights=subject.rounds_weights)
    arrays = [subject.array(x, dtype) for x in (query, key, value)]
    decoding: list[dict[str, Any]] = [{}, {"mask": mha.causal(), "query_offset": 199}]
    for options in decoding:
        out = mha.scaled_dot_product_attention(*arrays, **options)
        tolerance.assert_within("out", subject.numpy(out), exact.out, exact.out_bound)


@pytest.mark.promise(0, 3)
def test_weights_equal_the_oracle(subject: Subject, dtype: str, rng: np.random.Generator) -> None:
    judge_problems(subject, rng, 200, dtype, check="weights", limits=Limits(times=1))


def test_states_over_parts_of_the_keys_merge(subject: Subject, dtype: str, rng: np.random.Generator) -> None:
    query, key, value = (subject.rounded(rng.normal(size=(2, 3, n, 8)), dtype) for n in (5, 12, 12))
    exact = tolerance.exact_attention(query, key, value, dtype=dtype, rounds_weights=subject.rounds_weights)
    q, k, v = (subject.array(x, dtype) for x in (query, key, value))
    parts = [mha.attention_state(q, k[..., s, :], v[..., s, :]) for s in (slice(0, 0), slice(0, 5), slice(5, 6), slice(6, 12))]
    merged = mha.merge_states(*parts)
    # each part was rounded to the dtype of the values, and each merge rounds again in the wide one
    u, wide = tolerance.UNIT_ROUNDOFF[dtype], tolerance.UNIT_ROUNDOFF[tolerance.compute_dtype(dtype)]
    extra = (u + 16 * wide) * (exact.weights @ np.abs(value))
    tolerance.assert_within("out", subject.numpy(merged.out), exact.out, exact.out_bound + extra)
    tolerance.assert_within("lse", subject.numpy(merged.lse), exact.lse, 2 * exact.lse_bound + 16 * wide)


@pytest.mark.promise(8)
def test_the_state_over_no_keys_changes_no_bit(subject: Subject, dtype: str, rng: np.random.Generator) -> None:
    q, k = (subject.array(rng.normal(size=(2, 3, n, 8)), dtype) for n in (5, 6))
    some, none = mha.attention_state(q, k, k), mha.attention_state(q, k[..., :0, :], k[..., :0, :])
    for merged in (mha.merge_states(some, none), mha.merge_states(none, some)):
        for got, expected in zip(merged, some, strict=True):
            np.testing.assert_array_equal(subject.numpy(got), subject.numpy(expected))
