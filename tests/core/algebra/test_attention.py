"""Attention in blocks against the float64 oracle, for random combinations of options; the conformance suite judges it whole."""

import numpy as np
import pytest
from refusals import refusals

import mha_core as mha
from mha_conformance import oracle
from mha_conformance.cases.problems import random_problem
from mha_core.algebra import attention as algebra
from mha_core.algebra import blocks
from mha_core.ops.attend import prepare

CASES = 150
DISTANCE = np.arange(300)[None, :] - np.arange(300)[:, None]


def close(actual, expected):
    np.testing.assert_allclose(
        actual,
        expected,
        rtol=0,
        atol=2e-14 * max(1.0, np.abs(expected, where=np.isfinite(expected), out=np.zeros(np.shape(expected))).max(initial=0)),
    )


def close_state(backend, state, out, lse):
    close(backend.to_numpy(state.out), out)
    close(backend.to_numpy(state.lse), lse)


def test_the_result_does_not_depend_on_the_block_size(backend, rng):
    for _ in range(CASES):
        p = random_problem(rng)
        out, lse, _ = oracle.attention(p.query, p.key, p.value, **p.oracle)
        _, problem = prepare(*map(backend.from_numpy, (p.query, p.key, p.value)), **p.options(backend.from_numpy))
        state = algebra.attention_state(problem, block=tuple(map(int, rng.integers(1, 5, size=2))))
        close_state(backend, state, out, lse)


def test_problems_cut_into_blocks_equal_the_oracle(backend, rng, monkeypatch):
    """With lower limits every kind of block occurs: skipped, whole and partly masked."""
    monkeypatch.setattr(blocks, "_DENSE", 1 << 10)
    monkeypatch.setattr(blocks, "_BLOCK", 1 << 10)
    query, key, value = rng.normal(size=(3, 1, 2, 300, 4))
    q, k = np.arange(300)[:, None], np.arange(300)[None, :]
    for mask, allowed in [
        (None, None),
        (mha.causal(), k <= q),
        (mha.window(20, 3), (k >= q - 20) & (k <= q + 3)),
        (~mha.chunks(128), q // 128 != k // 128),
        (mha.prefix(70) | mha.causal(), (k < 70) | (k <= q)),
        (
            mha.packed([100, 0, 50, 50, 100]) & mha.causal(),
            (np.digitize(q, [100, 150, 200]) == np.digitize(k, [100, 150, 200])) & (k <= q),
        ),
    ]:
        state = mha.attention_state(*map(backend.from_numpy, (query, key, value)), mask=mask)
        out, lse, _ = oracle.attention(query, key, value, allowed=allowed)
        close_state(backend, state, out, lse)


@pytest.mark.parametrize("dense", [1 << 22, 1 << 8])
@pytest.mark.parametrize(
    ("shapes", "mask", "allowed", "offset"),
    [
        ([(1, 2, 30, 4), (1, 2, 30, 4), (5, 2, 30, 4)], mha.window(2, 2), np.abs(DISTANCE[:30, :30] - 20) <= 2, 20),
        ([(7, 2, 3, 6, 4), (1, 2, 3, 6, 4), (1, 2, 3, 6, 4)], mha.causal(), DISTANCE[:6, :6] <= 0, 0),
    ],
    ids=["values of each element, and queries that see nothing", "many small problems"],
)
def test_batches_run_together_or_in_slices(backend, rng, monkeypatch, shapes, mask, allowed, offset, dense):
    monkeypatch.setattr(blocks, "_DENSE", dense)
    query, key, value = (rng.normal(size=shape) for shape in shapes)
    out, lse, weights = oracle.attention(query, key, value, allowed=allowed)
    arrays, options = [backend.from_numpy(x) for x in (query, key, value)], {"mask": mask, "query_offset": offset}
    state = mha.attention_state(*arrays, **options)
    close_state(backend, state, out, lse)
    close(backend.to_numpy(mha.merge_states(state, state).out), out)
    if key.shape[0] == query.shape[0]:
        close(backend.to_numpy(mha.attention_weights(*arrays[:2], state.lse, **options)), weights)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int32, np.uint64])
def test_lengths_offsets_and_ids_may_be_integers_of_any_width(dtype, rng):
    query, key, value = rng.normal(size=(2, 1, 4, 4)), rng.normal(size=(2, 1, 600, 4)), rng.normal(size=(2, 1, 600, 4))
    lengths, offsets = np.asarray([100, 50], dtype=dtype), np.asarray([120, 90], dtype=dtype)
    k = np.arange(600)
    q = np.arange(4)[:, None] + 596
    allowed = (k >= q - 550) & (k < lengths.astype(int)[:, None, None, None])
    state = mha.attention_state(query, key, value, mask=mha.key_lengths(lengths) & mha.window(550, None), query_offset=596)
    close(state.out, oracle.attention(query, key, value, allowed=allowed)[0])
    q = np.arange(4)[:, None] + offsets.astype(int)[:, None, None, None]
    mask = mha.window(100, 0) & mha.segments(np.ones((2, 4), dtype=dtype), np.ones(600, dtype=dtype))
    state = mha.attention_state(query, key, value, mask=mask, query_offset=offsets)
    close(state.out, oracle.attention(query, key, value, allowed=(k <= q) & (k >= q - 100))[0])


def test_longdouble_is_not_computed_in_float32(rng):
    query, key, value = rng.normal(size=(3, 2, 5, 4))
    state = mha.attention_state(*(x.astype(np.longdouble) for x in (query, key, value)))
    assert state.lse.dtype == np.float64
    close(np.asarray(state.out, dtype=np.float64), oracle.attention(query, key, value)[0])


def weights_of(rows):
    return lambda: mha.attention_weights(np.ones((3, 4)), np.ones((3, 4)), rows=rows)


test_bad_rows_are_refused_by_name = refusals(
    {
        TypeError: {
            "rows[0] is bool; expected an int": weights_of([True, False, True]),
            "rows[0] is float; expected an int": weights_of([0.7]),
            "rows is int; expected a slice, or a sequence of ints such as [1]": weights_of(1),
        },
        IndexError: {"rows contains an index out of range; there are 3": weights_of([3])},
    }
)
