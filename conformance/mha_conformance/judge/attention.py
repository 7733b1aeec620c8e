"""Calls of attention on the backend under test, compared element by element with the oracle."""

from __future__ import annotations

from collections.abc import Callable
from itertools import cycle
from typing import Any

import numpy as np

import mha_core as mha

from ..backend import BackendUnderTest
from ..cases.features import AttentionCall, rounded
from ..cases.problems import RandomProblem
from ..oracle import tolerance


def state_of(backend: BackendUnderTest, *arrays: np.ndarray, dtype: str, **options: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return out and lse in NumPy; options are those of the public operation."""
    state = mha.attention_state(*(backend.array(x, dtype) for x in arrays), **options)
    return backend.numpy(state.out), backend.numpy(state.lse)


def judge_problem(backend: BackendUnderTest, problem: RandomProblem, dtype: str) -> None:
    """Judge out and lse of a random problem."""
    p = problem.map(lambda x: backend.rounded(x, dtype))
    exact = backend.exact_attention(p.query, p.key, p.value, dtype=dtype, **p.oracle)
    arrays = {name: backend.array(getattr(p, name), dtype) for name in ("query", "key", "value")}
    before = {name: backend.numpy(x).copy() for name, x in arrays.items()}
    state = mha.attention_state(*arrays.values(), **p.options(lambda x: backend.array(x, dtype)))
    _judge_state(backend, state, exact, arrays["query"], dtype)
    backend.assert_unchanged(arrays, before)


def judge_large_batch(backend: BackendUnderTest, dtype: str, rng: np.random.Generator) -> None:
    """Judge a batch whose scores, 9.6 million, are too many to be computed at once; three of its elements are compared."""
    count, length = 1040, 96
    query, whole, value = (backend.rounded(rng.normal(size=(count, 1, length, 8)), dtype) for _ in range(3))
    offset, lengths = rng.integers(-3, 4, size=count), rng.integers(1, length + 1, size=count)
    by_element = {"query_offset": backend.array(offset)}
    at_most = mha.key_lengths(backend.array(lengths))
    seen = rng.random((count, 1, 1, length)) < 0.6
    k, q = np.arange(length), np.arange(length)[:, None]
    cases: list[tuple[dict[str, Any], Callable[[int], Any]]] = [
        ({}, lambda at: None),
        ({"mask": mha.causal()}, lambda at: k <= q),
        ({"mask": mha.causal() & at_most, **by_element}, lambda at: (k <= q + offset[at]) & (k < lengths[at])),
        ({"mask": mha.chunks(5), **by_element}, lambda at: k // 5 == (q + offset[at]) // 5),
        ({"mask": backend.array(seen)}, lambda at: seen[at]),
    ]
    keys = cycle((whole, whole[:1], whole[0]))  # an axis that broadcasts is not cut
    for (options, allowed), key in zip(cases, keys, strict=False):
        key_of = np.broadcast_to(key, query.shape)
        out, lse = state_of(backend, query, key, value, dtype=dtype, **options)
        for at in (0, 700, count - 1):
            exact = backend.exact_attention(query[at], key_of[at], value[at], dtype=dtype, allowed=allowed(at))
            exact.assert_near(out[at], lse[at])


def judge_weights(backend: BackendUnderTest, problem: RandomProblem, dtype: str) -> None:
    """Judge the weights of a random problem; weights of masked keys must be exactly 0."""
    p = problem.map(lambda x: backend.rounded(x, dtype))
    p.value = p.value[: p.key.shape[0]]  # the weights lack batch elements that only the values have
    exact = tolerance.exact_attention(p.query, p.key, p.value, dtype=dtype, **p.oracle)
    query, key = backend.array(p.query, dtype), backend.array(p.key, dtype)
    weights = mha.attention_weights(query, key, **p.options(lambda x: backend.array(x, dtype)))
    backend.assert_like(weights, query)
    got = backend.numpy(weights)
    tolerance.assert_within("weights", got, exact.weights, exact.weights_bound)
    assert (got[exact.weights == 0] == 0).all(), "the weight of a masked key must be exactly 0"


def judge_poison(backend: BackendUnderTest, problem: RandomProblem, dtype: str) -> None:
    """Check that NaN in keys and inf in values that no query may see change no bit."""
    p, options = problem, problem.options(lambda x: backend.array(x, dtype))
    clean = state_of(backend, p.query, p.key, p.value, dtype=dtype, **options)
    poisoned = state_of(backend, p.query, *p.poisoned(), dtype=dtype, **options)
    for name, a, b in zip(("out", "lse"), clean, poisoned, strict=True):
        assert a.tobytes() == b.tobytes(), f"keys or values that no query may see changed {name}"


def judge_call(backend: BackendUnderTest, call: AttentionCall, dtype: str, *, wants_lse: bool) -> None:
    """Judge out of a call, lse if it is wanted, and check that no input was written to."""
    call = rounded(call, lambda x: backend.rounded(x, dtype))
    exact = backend.exact_attention(call.query, call.key, call.value, dtype=dtype, **call.oracle)
    made: list[tuple[Any, np.ndarray]] = []

    def make(x: np.ndarray) -> Any:
        array = backend.array(x, dtype)
        made.append((array, backend.numpy(array).copy()))
        return array

    arrays = {name: make(getattr(call, name)) for name in ("query", "key", "value")}
    options = {name: option(make) for name, option in call.options.items()}
    if wants_lse:
        _judge_state(backend, mha.attention_state(*arrays.values(), **options), exact, arrays["query"], dtype)
    else:
        out = mha.scaled_dot_product_attention(*arrays.values(), **options)
        backend.assert_like(out, arrays["query"])
        exact.assert_near(backend.numpy(out))
    given = dict(zip((*arrays, *(f"an array of the options ({i})" for i in range(9))), made, strict=False))
    backend.assert_unchanged({name: x for name, (x, _) in given.items()}, {name: before for name, (_, before) in given.items()})


def _judge_state(backend: BackendUnderTest, state: Any, exact: tolerance.Exact, query: Any, dtype: str) -> None:
    backend.assert_like(state.out, query)
    backend.assert_like(state.lse, query, dtype=getattr(backend.xp, tolerance.compute_dtype(dtype)))
    out, lse = backend.numpy(state.out), backend.numpy(state.lse)
    exact.assert_near(out, lse)
    empty = exact.lse == -np.inf
    assert (out[empty] == 0).all(), "a query that sees no key must give exactly 0"
