"""Attention on the backend under test, in NumPy, and on a batch that is too large to be computed at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import cycle
from typing import Any

import numpy as np

import mha_core as mha

from ..backend import BackendUnderTest
from ..cases.attention_gradients import attention_gradient_problem, plain_row
from .held import Judge


def state_of(backend: BackendUnderTest, *arrays: np.ndarray, **options: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return out and lse in NumPy; options are those of the public operation."""
    state = mha.attention_state(*map(backend.array, arrays), **options)
    return backend.numpy(state.out), backend.numpy(state.lse)


def judge_large_batch(judge: Judge) -> None:
    """Judge a batch whose scores, 9.6 million, are too many to be computed at once; three of its elements are compared."""
    count, length = 520, 96
    query, whole, value = (judge.normal((count, 2, length, 8)) for _ in range(3))
    offset, lengths = judge.rng.integers(-3, 4, size=count), judge.rng.integers(1, length + 1, size=count)
    by_element = {"query_offset": judge.array(offset)}
    at_most = mha.key_lengths(judge.array(lengths))
    seen = judge.rng.random((count, 1, 1, length)) < 0.6
    k, q = np.arange(length), np.arange(length)[:, None]
    cases: list[tuple[dict[str, Any], Callable[[int], Any]]] = [
        ({}, lambda at: None),
        ({"mask": mha.causal()}, lambda at: k <= q),
        ({"mask": mha.causal() & at_most, **by_element}, lambda at: (k <= q + offset[at]) & (k < lengths[at])),
        ({"mask": mha.chunks(5), **by_element}, lambda at: k // 5 == (q + offset[at]) // 5),
        ({"mask": judge.array(seen)}, lambda at: seen[at]),
    ]
    keys = cycle((whole, whole[0], whole[:1]))  # an axis that broadcasts is not cut
    for (options, allowed), key in zip(cases, keys, strict=False):
        key_of = np.broadcast_to(key, query.shape)
        out, lse = state_of(judge, query, key, value, **options)
        for at in (0, 350, count - 1):
            exact = judge.exact_attention(query[at], key_of[at], value[at], allowed=allowed(at))
            exact.assert_near(out[at], lse[at])


def judge_large_gradients(judge: Judge, features: Iterable[str]) -> None:
    """Judge gradients whose scores are too many to be computed at once, more than 4.2 million: of a batch, and of one head."""
    has = {*features}
    row = plain_row(has, kv_heads=1, groups=1, head_dim=4, value_dim=4)
    batch = {"batch": ((600,), (600,), () if "broadcast" in has else (600,)), "queries": 65, "keys": 130}
    head = {"queries": 2100, "keys": 2100, "band": "causal" if "causal" in has else "none"}
    head |= {"bias": "heads"} if {"bias", "d_bias"} <= has else {}
    for sizes in (batch, head):
        judge.judge_once(attention_gradient_problem({**row, **sizes}, judge.rng, judge.rng))
