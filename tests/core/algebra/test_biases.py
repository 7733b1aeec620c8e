"""Biases: their values, and their use with packed sequences."""

import math

import numpy as np
import pytest
from refusals import refusals

import mha_core as mha


def whole(backend, bias, queries, keys, heads, **options):
    """The bias as attention applies it, recovered from the logarithm of the weights."""
    query, key = np.zeros((heads, queries, 2)), np.zeros((heads, keys, 2))
    weights = mha.attention_weights(backend.from_numpy(query), backend.from_numpy(key), bias=bias, **options)
    logs = np.log(backend.to_numpy(weights))
    return logs - logs[..., :1]


def test_alibi_slopes_are_those_of_the_paper():
    assert mha.alibi(8).slopes == [2.0**-i for i in range(1, 9)]
    assert mha.alibi(1).slopes == [2.0**-8]
    six = mha.alibi(6).slopes
    assert six[:4] == [2.0**-2, 2.0**-4, 2.0**-6, 2.0**-8]
    assert six[4:] == pytest.approx([2.0**-1, 2.0**-3])


@pytest.mark.parametrize(("heads", "queries", "keys", "offset"), [(16, 50, 50, None), (2, 4, 6, 2)])
def test_alibi_is_linear_in_the_distance_in_float64(backend, heads, queries, keys, offset):
    """The slopes of 16 heads are not all powers of two, and would be rounded in float32."""
    q, k = np.arange(queries)[:, None] + (offset or 0), np.arange(keys)[None, :]
    slopes = np.asarray([2 ** (-8 * h / heads) for h in range(1, heads + 1)])[:, None, None]
    logs = whole(backend, mha.alibi(heads), queries, keys, heads, query_offset=offset)
    expected = -slopes * np.abs(q - k)
    np.testing.assert_allclose(logs, expected - expected[..., :1], atol=1e-12)


@pytest.mark.parametrize("bidirectional", [True, False])
def test_relative_bias_reads_the_table_by_bucket(backend, rng, bidirectional):
    heads, buckets, farthest, length = 3, 8, 20, 30
    table = rng.normal(size=(buckets, heads))
    expected = np.empty((heads, length, length))
    for q in range(length):
        for k in range(length):
            # Raffel et al. 2020: half of the buckets for one distance each, the rest logarithmic
            side, count = (buckets // 2 if bidirectional and k > q else 0), buckets // 2 if bidirectional else buckets
            distance, exact = (abs(k - q) if bidirectional else max(q - k, 0)), count // 2
            if distance >= exact:
                step = math.log(distance / exact) / math.log(farthest / exact) * (count - exact)
                distance = min(exact + math.floor(step), count - 1)
            expected[:, q, k] = table[side + distance]
    bias = mha.relative_bias(backend.from_numpy(table), bidirectional=bidirectional, max_distance=farthest)
    np.testing.assert_allclose(whole(backend, bias, length, length, heads), expected - expected[..., :1], atol=1e-12)


def test_relative_bias_takes_an_offset_for_each_batch_element(backend, rng):
    table, query, key = rng.normal(size=(8, 2)), rng.normal(size=(2, 2, 3, 4)), rng.normal(size=(2, 2, 5, 4))
    offsets = np.asarray([0, 2])
    bias = mha.relative_bias(backend.from_numpy(table), bidirectional=True, max_distance=6)
    together = mha.scaled_dot_product_attention(
        *map(backend.from_numpy, (query, key, key)), bias=bias, query_offset=backend.from_numpy(offsets)
    )
    for at, offset in enumerate(offsets):
        alone = mha.scaled_dot_product_attention(
            *map(backend.from_numpy, (query[at], key[at], key[at])), bias=bias, query_offset=int(offset)
        )
        np.testing.assert_allclose(backend.to_numpy(together)[at], backend.to_numpy(alone), atol=1e-14)


LENGTHS = [3, 3, 0, 1, 40, 12, 130, 5]


def table(rng, hidden=()):
    """A table of relative biases for 4 heads, -inf in the buckets ``hidden``."""
    values = rng.normal(size=(8, 4))
    values[list(hidden)] = -np.inf
    return values


DISTANCES = {
    "alibi": lambda make, rng: mha.alibi(4),
    "relative": lambda make, rng: mha.relative_bias(make(table(rng)), bidirectional=True, max_distance=20),
    "hidden": lambda make, rng: mha.relative_bias(make(table(rng, [0, 3, 5])), bidirectional=True, max_distance=20),
    "causal": lambda make, rng: mha.relative_bias(make(table(rng, [0])), bidirectional=False, max_distance=60),
}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("offset", [None, 2])
@pytest.mark.parametrize("band", [None, mha.causal(), mha.window(7, 2)], ids=["", "causal", "window"])
@pytest.mark.parametrize("name", DISTANCES)
def test_packed_sequences_have_the_bias_of_each_alone(backend, rng, name, band, offset, dtype):
    """Rows that see nothing, because the bias is -inf, are compared too."""
    tokens = sum(LENGTHS)
    arrays = [backend.from_numpy(rng.normal(size=(heads, tokens, 8)).astype(dtype)) for heads in (4, 2, 2)]
    bias = DISTANCES[name](lambda x: backend.from_numpy(x.astype(dtype)), rng)
    mask = mha.packed(LENGTHS) if band is None else mha.packed(LENGTHS) & band
    packed = mha.attention_state(*arrays, mask=mask, bias=bias, query_offset=offset)
    ends = np.cumsum(LENGTHS)
    with mha.use_kernel("attention", "algebra"):
        alone = [
            mha.attention_state(*(x[:, stop - n : stop, :] for x in arrays), mask=band, bias=bias, query_offset=offset)
            for stop, n in zip(ends, LENGTHS, strict=True)
            if n
        ]
    for field in ("out", "lse"):
        expected = np.concatenate([backend.to_numpy(getattr(state, field)) for state in alone], axis=1)
        tolerance = 1e-5 if dtype == "float32" else 1e-13
        np.testing.assert_allclose(backend.to_numpy(getattr(packed, field)), expected, rtol=tolerance, atol=tolerance)
    if offset is None:
        assert (backend.to_numpy(packed.lse) == -np.inf).any() == (name in ("hidden", "causal"))


@pytest.mark.parametrize("poison", [np.nan, np.inf])
def test_nan_and_inf_of_one_packed_sequence_do_not_reach_others_that_share_a_bias(backend, rng, poison):
    arrays = [rng.normal(size=(4, sum(LENGTHS), 8)) for _ in range(3)]
    options = {"mask": mha.packed(LENGTHS), "bias": DISTANCES["relative"](backend.from_numpy, rng)}
    expected = backend.to_numpy(mha.attention_state(*map(backend.from_numpy, arrays), **options).out)
    for x in arrays:
        x[:, 20] = poison  # in the fifth sequence
    with np.errstate(invalid="ignore"):  # the strict namespace computes with NumPy, which warns of inf - inf
        poisoned = backend.to_numpy(mha.attention_state(*map(backend.from_numpy, arrays), **options).out)
    clean = np.r_[0:7, 47 : sum(LENGTHS)]
    np.testing.assert_allclose(poisoned[:, clean], expected[:, clean], rtol=0, atol=1e-14)
    assert not np.isfinite(poisoned[:, 20]).any()


def attended(**options):
    return mha.scaled_dot_product_attention(np.eye(2), np.eye(2), np.eye(2), **options)


test_bad_biases_are_refused_with_what_was_expected = refusals(
    {
        TypeError: {
            "alibi(num_heads) is float; expected an int": lambda: mha.alibi(2.0),
            "bias is the function alibi; call it: mha.alibi(num_heads)": lambda: attended(bias=mha.alibi),
            "bias is the function relative_bias; call it: mha.relative_bias(table, bidirectional=..., max_distance=...)": (
                lambda: attended(bias=mha.relative_bias)
            ),
            "relative_bias(table) is list": lambda: mha.relative_bias([1.0], bidirectional=True, max_distance=9),
        },
        ValueError: {
            "alibi(num_heads) is 0; expected at least 1": lambda: mha.alibi(0),
            "expected (buckets, H)": lambda: mha.relative_bias(np.ones(3), bidirectional=True, max_distance=9),
            "a max_distance above 4": lambda: mha.relative_bias(np.ones((8, 2)), bidirectional=False, max_distance=4),
        },
    }
)
