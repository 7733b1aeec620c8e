"""Calls of attention on the backend under test, judged element by element against the oracle."""

from __future__ import annotations

from typing import Any

import numpy as np

import mha_core as mha

from . import calls, tolerance
from .problems import Problem
from .subject import Subject, unchanged


def state_of(subject: Subject, *arrays: np.ndarray, dtype: str, **options: Any) -> tuple[np.ndarray, np.ndarray]:
    """out and lse in NumPy; options as the public operation takes them."""
    state = mha.attention_state(*(subject.array(x, dtype) for x in arrays), **options)
    return subject.numpy(state.out), subject.numpy(state.lse)


def judge_problem(subject: Subject, problem: Problem, dtype: str) -> None:
    """out and lse of a random problem."""
    p = problem.map(lambda x: subject.rounded(x, dtype))
    exact = tolerance.exact_attention(p.query, p.key, p.value, dtype=dtype, rounds_weights=subject.rounds_weights, **p.oracle)
    arrays = {name: subject.array(getattr(p, name), dtype) for name in ("query", "key", "value")}
    before = {name: subject.numpy(x).copy() for name, x in arrays.items()}
    state = mha.attention_state(*arrays.values(), **p.options(lambda x: subject.array(x, dtype)))
    _judge_state(subject, state, exact, arrays["query"], dtype)
    unchanged(subject, arrays, before)


def judge_weights(subject: Subject, problem: Problem, dtype: str) -> None:
    """The weights of a random problem, and that those of masked keys are exactly 0."""
    p = problem.map(lambda x: subject.rounded(x, dtype))
    p.value = p.value[: p.key.shape[0]]  # the batch of the values alone is not known to the weights
    exact = tolerance.exact_attention(p.query, p.key, p.value, dtype=dtype, **p.oracle)
    query, key = subject.array(p.query, dtype), subject.array(p.key, dtype)
    weights = mha.attention_weights(query, key, **p.options(lambda x: subject.array(x, dtype)))
    subject.assert_like(weights, query)
    got = subject.numpy(weights)
    tolerance.assert_within("weights", got, exact.weights, exact.weights_bound)
    assert (got[exact.weights == 0] == 0).all(), "the weight of a masked key must be exactly 0"


def judge_poison(subject: Subject, problem: Problem, dtype: str) -> None:
    """NaN and inf in what no query may see change no bit."""
    p, options = problem, problem.options(lambda x: subject.array(x, dtype))
    clean = state_of(subject, p.query, p.key, p.value, dtype=dtype, **options)
    poisoned = state_of(subject, p.query, *p.poisoned(), dtype=dtype, **options)
    for name, a, b in zip(("out", "lse"), clean, poisoned, strict=True):
        assert a.tobytes() == b.tobytes(), f"what no query may see changed {name}"


def judge_call(subject: Subject, call: calls.AttentionCall, dtype: str, *, wants_lse: bool) -> None:
    """A call of ``calls``: out, lse only where it is wanted, and that no input was written to."""
    call = calls.rounded(call, lambda x: subject.rounded(x, dtype))
    exact = tolerance.exact_attention(
        call.query, call.key, call.value, dtype=dtype, rounds_weights=subject.rounds_weights, **call.oracle
    )
    made: list[tuple[Any, np.ndarray]] = []

    def make(x: np.ndarray) -> Any:
        array = subject.array(x, dtype)
        made.append((array, subject.numpy(array).copy()))
        return array

    arrays = {name: make(getattr(call, name)) for name in ("query", "key", "value")}
    options = {name: option(make) for name, option in call.options.items()}
    if wants_lse:
        _judge_state(subject, mha.attention_state(*arrays.values(), **options), exact, arrays["query"], dtype)
    else:
        out = mha.scaled_dot_product_attention(*arrays.values(), **options)
        subject.assert_like(out, arrays["query"])
        tolerance.assert_within("out", subject.numpy(out), exact.out, exact.out_bound)
    given = dict(zip((*arrays, *(f"an array of the options ({i})" for i in range(9))), made, strict=False))
    unchanged(subject, {name: x for name, (x, _) in given.items()}, {name: before for name, (_, before) in given.items()})


def _judge_state(subject: Subject, state: Any, exact: tolerance.Exact, query: Any, dtype: str) -> None:
    subject.assert_like(state.out, query)
    subject.assert_like(state.lse, query, dtype=getattr(subject.xp, tolerance.compute_dtype(dtype)))
    out, lse = subject.numpy(state.out), subject.numpy(state.lse)
    tolerance.assert_within("out", out, exact.out, exact.out_bound)
    tolerance.assert_within("lse", lse, exact.lse, exact.lse_bound)
    nothing = exact.lse == -np.inf
    assert (out[nothing] == 0).all(), "a query that sees no key must give exactly 0"
