"""NumPy's attention kernel: extreme numbers, NaN in hidden keys, and the same bits for every caller."""

import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import chain

import numpy as np
import pytest
from judged_attention import algebra, assert_lowest_numbers_are_only_numbers, calls, inputs, judge, normal, same_bits, tiles

import mha_core as mha
from mha_numpy import threads
from mha_numpy.attention import split
from mha_numpy.attention.exponential import FASTEST, Base

POISON = [np.nan, np.inf, -np.inf, 1e30]
LENGTH, KEYS = 130, 300


def unseen():
    """Masks by name, each with the keys that no query sees, (batch, KEYS)."""
    keys, none = np.arange(KEYS), np.zeros((2, KEYS), dtype=bool)
    lengths = np.asarray([100, 250])
    array = np.random.default_rng(0).random((LENGTH, KEYS)) < 0.5
    array[:, 37:180:3] = False
    return {
        "window": (mha.window(20, 5), none | (keys >= LENGTH + 5)),
        "key_lengths": (mha.key_lengths(lengths), keys >= lengths[:, None]),
        "causal key_lengths": (mha.causal() & mha.key_lengths(lengths), (keys >= lengths[:, None]) | (keys >= LENGTH)),
        "array": (mha.array_mask(array), none | ~array.any(axis=0)),
        "rest": (~mha.causal() & mha.window(None, 50) | mha.prefix(0), none | (keys < 1) | (keys >= LENGTH + 50)),
    }


def bounded(rng, bound):
    """Inputs whose longest query and key bound the scores by ``bound``, in units of the kernel's base."""
    query, key, value = inputs(rng, LENGTH, KEYS, batch=(2,), heads=3)
    longest = [np.sqrt(np.vecdot(x.astype(np.float64), x.astype(np.float64)).max()) for x in (query, key)]
    times = bound * FASTEST.ln / (longest[0] * longest[1])
    return query * np.float32(times), key, value


# keys that no query sees


@pytest.mark.parametrize("bound", [30.0, 59.9, 60.1, 300.0])
@pytest.mark.parametrize("name", unseen())
def test_7_unseen_keys_change_no_bit(rng, name, bound):
    mask, hidden = unseen()[name]
    query, key, value = bounded(rng, bound)
    options = {"mask": mask, "query_offset": 0, "scale": 1.0}
    kept = {"key": key, "value": value}
    kept = {name: np.where(hidden[:, None, :, None], np.float32(0), x) for name, x in kept.items()}
    expected = tiles(query, **kept, **options)
    for poison in POISON:
        given = {name: np.where(hidden[:, None, :, None], np.float32(poison), x) for name, x in kept.items()}
        same_bits(expected, tiles(query, **given, **options))


@pytest.mark.parametrize("bound", [59.9, 60.1])
@pytest.mark.parametrize("softcap", [None, 41.5, 41.7, 1000.0])
def test_scores_near_the_bound(rng, bound, softcap):
    x = bounded(rng, bound)
    options = {} if softcap is None else {"softcap": softcap}
    judge(*x, scale=1.0, **options)
    judge(*x, scale=1.0, sink=np.asarray([41.5, 41.7, 0.0], dtype=np.float32), **options)
    q, k = np.arange(LENGTH)[:, None], np.arange(KEYS)
    judge(*x, scale=1.0, mask=mha.causal(), query_offset=9, allowed=k <= q + 9, **options)


def test_scores_equal_to_the_bound(rng):
    """All queries and keys are parallel, so each score is about as large as the bound, positive or negative."""
    one = normal(rng, 16)
    for at, sign in ((59.0, 1), (59.0, -1), (61.0, 1), (61.0, -1), (150.0, 1), (150.0, -1)):
        query, key, value = inputs(rng, LENGTH, KEYS)
        unit = one / np.linalg.norm(one)
        query[:], key[:] = unit * np.float32(sign * at * FASTEST.ln), unit
        key *= rng.uniform(0.9, 1, size=(KEYS, 1)).astype(np.float32)
        judge(query, key, value, scale=1.0)


def test_long_keys_at_the_end(rng):
    """The last queries see long keys only, and all their scores are far below 0."""
    query, key, value = inputs(rng, 1500, 1500, heads=1)
    query[:], key[:] = query[0, 0, 0] / np.linalg.norm(query[0, 0, 0]), key * np.float32(0.1)
    key[:, :, 1100:] = -np.float32(145 * FASTEST.ln) * query[:, :, :1]
    q, k = np.arange(1500)[:, None], np.arange(1500)
    judge(query, key, value, scale=1.0, mask=mha.window(20, 0), allowed=(k <= q) & (k >= q - 20))


def test_each_batch_element_has_its_own_bound(rng):
    query, key, value = inputs(rng, LENGTH, KEYS, batch=(2,), heads=1)
    query[:] = query[0, 0, 0] / np.linalg.norm(query[0, 0, 0])
    key[0], key[1] = key[0] * np.float32(0.1), -np.float32(145 * FASTEST.ln) * query[1, 0, 0]
    lengths = np.asarray([KEYS, KEYS - 1])
    seen = np.arange(KEYS) < lengths[:, None, None, None]
    judge(query, key, value, scale=1.0, mask=mha.key_lengths(lengths), allowed=seen)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_no_weight_is_a_denormal_number(rng, dtype, monkeypatch):
    """A product with denormal numbers takes 155 times as long."""
    least = []

    def power(x, out=None):
        out = FASTEST.power(x, out=out)
        least.append(np.min(out, where=out > 0, initial=1))
        return out

    monkeypatch.setattr(split, "FASTEST", Base(power, FASTEST.ln))
    tiles(*inputs(rng, LENGTH, KEYS, times=300, dtype=dtype))
    tiles(*inputs(rng, LENGTH, KEYS, times=300, dtype=dtype), mask=mha.window(9, 9), query_offset=0)
    assert np.finfo(dtype).tiny < min(least) < 1e-20


# keys that some queries see and others do not


@pytest.mark.parametrize("times", [1.0, 40.0])
@pytest.mark.parametrize("length", [5, LENGTH])
def test_3_masked_means_excluded(rng, length, times):
    query, key, value = inputs(rng, length, KEYS, times=times)
    value[..., 7, :] = 1e30
    allowed = rng.random((length, KEYS)) < 0.5
    allowed[::2, 7], allowed[1::2, 7] = False, True
    minus = np.where(allowed, 0, -np.inf).astype(np.float32)
    judge(query, key, value, mask=allowed, allowed=allowed)
    judge(query, key, value, bias=minus, allowed=allowed, whole_bias=0.0)
    judge(query, key, value, bias=np.broadcast_to(minus[0], (1, KEYS)), allowed=allowed[0], whole_bias=0.0)
    q, k = np.arange(length)[:, None], np.arange(KEYS)
    near = (k <= q + 4) & (k >= q - 2)
    judge(query, key, value, mask=mha.window(2, 4), query_offset=0, allowed=near)
    judge(query, key, value, mask=mha.window(2, 4) | mha.prefix(0), query_offset=0, allowed=near)
    key[..., 7, :] *= np.float32(1e6)  # a masked score larger than all others
    judge(query, key, value, mask=allowed, allowed=allowed)
    judge(query, key, value, bias=minus, allowed=allowed, whole_bias=0.0)
    judge(query, key, value, mask=mha.window(2, 4), query_offset=0, allowed=near)


def test_a_row_whose_biases_are_all_minus_infinity_sees_nothing(rng):
    x = inputs(rng, LENGTH, KEYS)
    bias = normal(rng, LENGTH, KEYS)
    bias[3], bias[64:70], bias[-1] = -np.inf, -np.inf, -np.inf
    seen = np.isfinite(bias)
    judge(*x, bias=bias, allowed=seen, whole_bias=np.where(seen, bias, 0))
    judge(*x, bias=bias, allowed=seen, whole_bias=np.where(seen, bias, 0), sink=normal(rng, 2))


# overflow, NaN and infinity


def pattern(x):
    """The kind of each number: 0 for NaN, 1 for inf, 2 for -inf, 3 for zero, 4 for any other."""
    return np.select([np.isnan(x), x == np.inf, x == -np.inf, x == 0], [0, 1, 2, 3], 4)


def assert_same_pattern(*arguments, **options):
    with np.errstate(all="ignore"):  # the algebra may warn
        expected = algebra(*arguments, **options)
    for got, right in zip(tiles(*arguments, **options), expected, strict=True):
        np.testing.assert_array_equal(pattern(got), pattern(right))


@pytest.mark.parametrize("bound", [10.0, 59.0, 200.0])
def test_values_near_the_largest_number(rng, bound):
    query, key, value = bounded(rng, bound)
    value = value / np.abs(value).max() * np.float32(1e36)
    judge(query, key, value, scale=1.0)
    judge(query, key, value * 30, scale=1.0, sink=np.full(3, 60, dtype=np.float32))
    assert np.isfinite(tiles(query, key, value * 30, scale=1.0, mask=mha.window(3, 3), query_offset=0).out).all()


@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("length", [3, LENGTH])
@pytest.mark.parametrize("where", ["query", "key", "value"])
def test_nan_and_infinity_propagate_as_in_the_algebra(rng, where, length, poison):
    x = dict(zip(("query", "key", "value"), inputs(rng, length, 60), strict=True))
    x[where][0, 1, 2, 3] = poison
    assert_same_pattern(*x.values())
    if where == "query":
        assert_same_pattern(*x.values(), mask=mha.causal(), query_offset=60 - length)
        assert_same_pattern(*x.values(), softcap=5.0)


def test_denormals(rng):
    query, key, value = inputs(rng, LENGTH, KEYS)
    tiny = np.float32(1e-42)
    judge(query * tiny, key, value)
    judge(query, key * tiny, value)
    judge(query, key, value * np.float32(1e-36))
    right = tiles(query, key, value).out.astype(np.float64) * 1e-42
    np.testing.assert_allclose(tiles(query, key, value * tiny).out, right, rtol=0, atol=8 * 2.0**-149)
    judge(query, key, value, scale=1e-42)
    judge(query * np.float32(1e20), key * np.float32(1e-20), value)


# the same bits


def test_14_the_number_of_threads_changes_no_bit(rng, set_num_threads):
    for call in calls(rng):
        expected = call()
        for count in (1, 2, 5):
            set_num_threads(count)
            same_bits(expected, call())


def test_14_calls_inside_a_task_give_the_same_bits(rng):
    for call in calls(rng):
        results = {}
        threads.run(lambda at, call=call, results=results: results.update({at: call()}), range(5))
        same_bits(call(), *results.values())


def test_14_calls_from_many_threads_give_the_same_bits(rng):
    asked = calls(rng)
    expected = [call() for call in asked]
    start = threading.Barrier(8)

    def caller(first):
        start.wait()
        return [((at + first) % len(asked), asked[(at + first) % len(asked)]()) for at in range(len(asked))]

    with ThreadPoolExecutor(8) as callers:
        for at, state in chain(*callers.map(caller, range(8))):
            same_bits(expected[at], state)


@pytest.mark.parametrize("poison", [np.nan, np.inf])
@pytest.mark.parametrize("of", ["query", "key", "value"])
def test_nan_in_a_packed_sequence_reaches_no_other(rng, poison, of):
    """Short sequences share a tile, where a weight of 0 times NaN is NaN."""
    lengths = (7, 9, 4, 20, 11)
    arrays = dict(zip(("query", "key", "value"), inputs(rng, sum(lengths), sum(lengths), heads=3), strict=True))
    mask = mha.packed(lengths) & mha.causal()
    expected = mha.attention_state(**arrays, mask=mask)
    arrays[of] = arrays[of].copy()
    arrays[of][..., 17, 2] = poison  # in the third sequence
    out, lse = mha.attention_state(**arrays, mask=mask)
    finite = np.r_[0:16, 20:51]
    np.testing.assert_allclose(out[..., finite, :], expected.out[..., finite, :], rtol=0, atol=1e-6)
    np.testing.assert_allclose(lse[..., finite], expected.lse[..., finite], rtol=0, atol=1e-6)
    assert not np.isfinite(out[..., 17, :]).all()


@pytest.mark.parametrize("length", [1, 70])
def test_the_lowest_finite_bias_and_sink_are_only_numbers(rng, length):
    assert_lowest_numbers_are_only_numbers(rng, length)


@pytest.mark.parametrize("length", [1, 200])
@pytest.mark.parametrize(("score", "size"), [(39, 1e25), (-39, 1.2345678e-28), (14, 1e35), (-14, 1.2345678e-30)])
def test_values_of_any_size_keep_their_precision(length, score, size):
    query, key = np.full((1, length, 1), score, dtype=np.float32), np.ones((1, length, 1), dtype=np.float32)
    value = np.full((1, length, 1), size, dtype=np.float32)
    for out in (mha.scaled_dot_product_attention(query, key, value, scale=1.0), tiles(query, key, value, scale=1.0).out):
        np.testing.assert_allclose(out, value, rtol=1e-5)


def test_14_packed_sequences_read_no_uninitialised_memory(rng):
    query = normal(rng, 8, 96, 32)
    key, value = normal(rng, 2, 1, 96, 32)
    results = set()
    for at in range(20):
        np.full((8, 96, 32), np.nan if at % 2 else 0, dtype=np.float32)  # the next result may reuse this memory
        results.add(mha.scaled_dot_product_attention(query, key, value, mask=mha.packed((40, 30, 26))).tobytes())
    assert len(results) == 1


def test_14_few_pairs_and_linear_maps_while_another_thread_computes(rng, blas_count):
    query, (key, value) = normal(rng, 1, 64, 64), normal(rng, 2, 1, 128, 64)
    x, w, large = normal(rng, 200, 512), normal(rng, 512, 512), normal(rng, 1, 1024, 64)
    stop = threading.Event()

    def other():
        while not stop.is_set():
            mha.scaled_dot_product_attention(large, large, large)

    def results(count):
        attended = {mha.scaled_dot_product_attention(query, key, value).tobytes() for _ in range(count)}
        return attended | {mha.linear(x, w).tobytes() for _ in range(count)}

    with ThreadPoolExecutor(1) as thread:
        thread.submit(other)
        try:
            beside = results(50)
        finally:
            stop.set()
    assert len(beside) == 2 and beside == results(1)
