"""Attention states: merging is a commutative monoid, and any split of the keys merges to the whole."""

import numpy as np
from properties import given, st
from refusals import refusals

import mha_core as mha
from mha_conformance import oracle

seeds = st.integers(0, 2**32 - 1)


def parts_of(rng, count):
    """States over disjoint keys, some of them perhaps over none, and the state over all keys."""
    query, key, value = (rng.normal(size=(2, length, 4)) for length in (3, 9, 9))
    owner = rng.integers(0, count, size=9)
    states = [mha.attention_state(query, key[:, owner == at], value[:, owner == at]) for at in range(count)]
    return states, mha.attention_state(query, key, value)


def same(a, b):
    np.testing.assert_allclose(a.out, b.out, atol=1e-13)
    np.testing.assert_allclose(a.lse, b.lse, atol=1e-13)


@given(seeds, st.integers(1, 5))
def test_any_partition_of_the_keys_merges_to_the_whole(seed, count):
    states, whole = parts_of(np.random.default_rng(seed), count)
    same(mha.merge_states(*states), whole)


@given(seeds)
def test_merging_is_associative_and_commutative(seed):
    (a, b, c), _ = parts_of(np.random.default_rng(seed), 3)
    same(mha.merge_states(mha.merge_states(a, b), c), mha.merge_states(a, mha.merge_states(b, c)))
    same(mha.merge_states(a, b), mha.merge_states(b, a))


@given(seeds)
def test_a_sink_is_one_more_key_without_a_value(seed):
    rng = np.random.default_rng(seed)
    query, key, value = (rng.normal(size=(2, length, 4)) for length in (3, 9, 9))
    sink = rng.normal(size=2) * 3
    state = mha.attention_state(query, key, value)
    alone = mha.AttentionState(np.zeros_like(state.out), np.repeat(sink[:, None], 3, axis=1))
    same(mha.merge_states(state, alone), mha.attention_state(query, key, value, sink=sink))


def test_one_state_merges_to_itself_in_memory_of_its_own(backend):
    x = backend.from_numpy(np.linspace(-1, 1, 24).reshape(2, 3, 4))
    state = mha.attention_state(x, x, x)
    merged = mha.merge_states(state)
    for a, b in zip(state, merged, strict=True):
        assert a is not b
        np.testing.assert_array_equal(backend.to_numpy(a), backend.to_numpy(b))
    before = np.array(backend.to_numpy(state.out))
    if backend.name in ("numpy", "torch"):
        merged.out[...] = 7.0
        merged.lse[...] = 7.0
    np.testing.assert_array_equal(backend.to_numpy(state.out), before)


def test_states_of_wide_range_merge_without_overflow():
    a = mha.AttentionState(np.ones((1, 1)), np.asarray([1e4]))
    b = mha.AttentionState(np.zeros((1, 1)), np.asarray([-1e4]))
    merged = mha.merge_states(a, b)
    assert merged.out == 1.0 and merged.lse == 1e4


def test_half_precision_states_merge_in_float32_and_stay_half(rng):
    query, key, value = rng.normal(size=(3, 2, 6, 4)).astype(np.float16)
    states = [mha.attention_state(query, key[:, part], value[:, part]) for part in (slice(0, 2), slice(2, 6))]
    merged = mha.merge_states(*states)
    assert merged.out.dtype == np.float16 and merged.lse.dtype == np.float32
    np.testing.assert_allclose(merged.out, oracle.attention(query, key, value)[0], atol=4e-3)


def merged(*shapes):
    return lambda: mha.merge_states(*((np.zeros(out), np.zeros(lse)) for out, lse in shapes))


test_bad_states_are_refused_with_what_was_expected = refusals(
    {
        TypeError: {"expected at least one state": merged()},
        ValueError: {
            "states[1].out has shape (2, 4); expected the shape of states[0].out = (2, 3)": merged(((2, 3), 2), ((2, 4), 2)),
            "states[0].lse has shape (3,)": merged(((2, 3), 3)),
        },
    }
)
