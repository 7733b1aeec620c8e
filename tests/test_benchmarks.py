"""What asv follows over time: every goal of every backend, and no wrong answer."""

from functools import partial

import pytest

import sample_contenders as sample
from benchmarks import goals
from peers.cases import CASES, Case, Peer


def case_of(work):
    """On NumPy the sum, done by this."""
    return Case("sum", sample.Sum(1000), lambda problem, backend: work(problem), Peer("none", sample.builtin), {"numpy": 1.0})


def test_each_goal_is_followed(monkeypatch):
    monkeypatch.setattr(goals, "ready", lambda backend: None)  # which backends there are is another question
    for case in CASES:
        for backend in case.goals:
            assert goals._case(backend, case.name).problem == case.problem
    assert {case.name for case in CASES} == set(goals.Time.params[1]) > set(goals.Memory.params[1])


def test_what_is_no_goal_is_left_out():
    with pytest.raises(NotImplementedError, match=r"^text encoder, bfloat16 is no goal of numpy$"):
        goals.Time().setup("numpy", "text encoder, bfloat16")


def test_a_wrong_answer_is_not_timed(monkeypatch):
    monkeypatch.setattr(goals, "CASES", [case_of(partial(sample.off_by, error=1))])
    benchmark = goals.Time()
    with pytest.raises(AssertionError, match=r"^the sum is 499501; expected 499500$"):
        benchmark.setup("numpy", "sum")
    assert not hasattr(benchmark, "work")


def test_a_right_answer_is_timed_in_samples_that_are_long_enough(monkeypatch):
    monkeypatch.setattr(goals, "CASES", [case_of(sample.builtin)])
    benchmark = goals.Time()
    benchmark.setup("numpy", "sum")
    assert benchmark.number > 50
    work = benchmark.work
    benchmark.setup("numpy", "sum")  # as asv does before each sample
    assert benchmark.work is work
    benchmark.time_call("numpy", "sum")
