"""Records without their arrays: equal for calls that differ in arrays only, and filled again."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from judged_attention import normal
from sample_kernels import Plugin, registered

import mha_core as mha
from mha_core.plugin import AttentionGradients, AttentionState, Kernel, Outline

PROBLEMS = []


def attention(p):
    PROBLEMS.append(p)
    return AttentionState(np.zeros((*p.rows_shape, p.value.shape[-1]), p.query.dtype), np.zeros(p.rows_shape, p.query.dtype))


FEATURES = frozenset({"causal", "key_lengths", "relative_bias", "bias", "sink", "softcap", "mask"})


@pytest.fixture
def problem_of():
    """The function that returns the problem of a call."""

    def problem_of(*arrays, **options):
        PROBLEMS.clear()
        mha.scaled_dot_product_attention(*arrays, **options)
        return PROBLEMS.pop()

    with registered(Plugin([Kernel("numpy", "attention", "keeps", 1, f"{__name__}:attention", 1000, FEATURES)])):
        yield problem_of


def outlined(p):
    outline = Outline.of(p, np.ndarray)
    return outline, [*outline.arrays(p)]


def call(rng, softcap=2.0):
    arrays = [normal(rng, 2, 3, 5, 4) for _ in range(3)]
    bias = mha.relative_bias(normal(rng, 8, 3), bidirectional=True, max_distance=5)
    mask = mha.causal() & mha.key_lengths(rng.integers(1, 5, size=2))
    return arrays, {"mask": mask, "bias": bias, "sink": normal(rng, 3), "softcap": softcap}


def test_outlines_of_calls_that_differ_in_arrays_only_are_equal(rng, problem_of):
    (first, arrays), (second, others) = (outlined(problem_of(*x, **options)) for x, options in (call(rng), call(rng)))
    assert first == second and hash(first) == hash(second)
    assert len(arrays) == len(others) >= 6
    x, options = call(rng, softcap=3.0)
    assert outlined(problem_of(*x, **options))[0] != first
    x, options = call(rng)
    assert outlined(problem_of(*x, **options | {"mask": mha.causal()}))[0] != first


def test_a_filled_outline_is_the_same_problem(rng, problem_of):
    x, options = call(rng)
    p = problem_of(*x, **options)
    outline, arrays = outlined(p)
    q = outline.filled(arrays)
    assert type(q) is type(p) and q.features == p.features and q.query is p.query and q.sink is p.sink
    with mha.use_kernel("attention", "algebra"):
        expected = mha.attention_state(*x, **options)
    from mha_core.algebra.attention import attention_state

    np.testing.assert_array_equal(attention_state(q).out, expected.out)


def test_gradients_stand_in_the_places_of_the_arrays(rng, problem_of):
    x, options = call(rng)
    p = problem_of(*x, **options)
    outline, arrays = outlined(p)
    at = {name: [y is array for y in arrays].index(True) for name, array in (("query", p.query), ("sink", p.sink))}
    at["bias"] = [y is p.bias.table for y in arrays].index(True)
    for name, index in at.items():
        assert outline.names(i == index for i in range(len(arrays))) == [name]
    assert sorted(outline.names(True for _ in arrays)) == ["bias", "key", "query", "sink", "value"]
    placed = outline.placed(p, AttentionGradients(query="dq", sink="ds"), ["db"])
    assert {i: d for i, d in enumerate(placed) if d is not None} == {at["query"]: "dq", at["sink"]: "ds", at["bias"]: "db"}
    assert not any(outline.placed(p, AttentionGradients(), None))


@dataclass(frozen=True, eq=False)
class Field:
    value: Any


def test_values_of_other_types_are_not_equal():
    """True == 1 == 1.0, but what is compiled for one of them may not serve another."""
    outlines = [Outline.of(Field(value), np.ndarray) for value in (True, 1, 1.0, (1,), (1.0,), None)]
    assert len(set(outlines)) == len(outlines)
    unhashable = [1]
    assert Outline.of(Field(unhashable), np.ndarray) == Outline.of(Field(unhashable), np.ndarray)
    assert Outline.of(Field(unhashable), np.ndarray) != Outline.of(Field([1]), np.ndarray)


def test_an_instance_of_a_subclass_that_is_no_dataclass_is_kept_whole():
    class Child(Field):
        pass

    child = Child(np.ones(2))
    outline = Outline.of(Field(child), np.ndarray)
    assert [*outline.arrays(Field(child))] == [] and outline.filled([]).value is child
