"""NumPy's attention kernel against float64, where the covering design of the conformance suite does not go.

The design pairs every mask, bias and option with lengths, widths, heads and batches around powers of two. Here are masks,
offsets, strides and numbers beyond its axes, and tiles of a few scores.
"""

import itertools

import numpy as np
import pytest
from judged_attention import inputs, judge, normal
from memory_views import VIEWS
from properties import given, settings, st

import mha_core as mha
from mha_conformance.cases.problems import Limits, random_problem
from mha_numpy.attention import kernel, subproblem, tiles

ALIGNED = [(1, 1025), (1025, 1), (65, 513), (513, 65), (200, 200), (600, 600)]
OFFSETS = [-700, -513, -64, -1, 0, 1, 17, 64, 500, 1100]
BANDS = {
    "causal": (None, 0),
    "diagonal": (0, 0),
    "left": (3, None),
    "right": (None, 3),
    "a tile": (63, 0),
    "more than a tile": (65, 1),
    "wide": (300, 200),
    "wider than the problem": (5000, 5000),
}


def positions(query, key, offset=0):
    return np.arange(query.shape[-2])[:, None] + offset, np.arange(key.shape[-2])[None, :]


def band(query, key, left, right, offset=0):
    """The pairs that window(left, right) allows; causal is (None, 0)."""
    q, k = positions(query, key, offset)
    everywhere = np.ones((q.size, k.size), dtype=bool)
    return everywhere & (True if left is None else k >= q - left) & (True if right is None else k <= q + right)


@pytest.mark.parametrize("offset", [0, 40])
def test_heads_are_computed_together_where_queries_see_few_keys(rng, monkeypatch, offset):
    (query, key, value), cut = inputs(rng, 300, 340, batch=(2,), heads=8), []
    monkeypatch.setattr(kernel, "_is_narrow", lambda s, of=kernel._is_narrow: cut.append(of(s)) or cut[-1])
    q, k = positions(query, key, offset)
    lengths, documents = np.asarray([200, 340]), np.arange(340) // 50
    of_length, of_document = k < lengths[:, None, None, None], documents[q] == documents[k]

    def within(b, h, q, k, documents):
        return documents[q] == documents[k]

    masks = {
        "window": (mha.window(20, 0), band(query, key, 20, 0, offset)),
        "lengths": (mha.window(20, 3) & mha.key_lengths(lengths), band(query, key, 20, 3, offset) & of_length),
        "map": (mha.block_mask(mha.mask_function(within, [documents]), 300, 340, query_offset=offset), of_document),
        "function": (mha.mask_function(within, [documents]) & mha.causal(), of_document & (k <= q)),
    }
    for mask, allowed in masks.values():
        judge(query, key, value, mask=mask, query_offset=offset, allowed=allowed)
        judge(query, key, value, mask=mask, query_offset=offset, allowed=allowed, bias=normal(rng, 8, 300, 340))
    assert cut and all(cut)


def test_pairs_in_doubt_are_evaluated_once_for_a_block_mask(rng):
    called = []

    def near(b, h, q, k):
        called.extend([q.size * k.size] if q.size * k.size > 1 else [])  # one pair says which axes the mask has
        return abs(q - k) % 70 < 3

    mask = mha.block_mask(near, 150, 150, backend="numpy")
    x = inputs(rng, 150, 150)
    allowed = near(None, None, *positions(*x[:2]))
    judge(*x, mask=mask, allowed=allowed)
    before = len(called)
    judge(*x, mask=mask, allowed=allowed)
    assert len(called) == before > 0


# shapes


@pytest.mark.parametrize(
    ("batch", "heads"), [((), 3), ((1,), 50), ((37,), 3), ((3, 2), 5), ((2, 1, 3), 1), ((5, 7), 11), ((2,), 250)]
)
@pytest.mark.parametrize("length", [1, 33])
def test_many_small_heads_and_any_batch(rng, batch, heads, length):
    x = inputs(rng, length, 40, batch=batch, heads=heads)
    judge(*x)
    judge(*x, mask=mha.causal(), query_offset=40 - length, allowed=band(*x[:2], None, 0, 40 - length))
    judge(*x, mask=mha.causal() | mha.prefix(7), query_offset=0, allowed=band(*x[:2], None, 0) | (np.arange(40) < 7))
    mask = rng.random((*batch, heads, length, 40)) < 0.3
    judge(*x, mask=mask, allowed=mask, bias=normal(rng, *batch, heads, length, 40))


# strides


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
@pytest.mark.parametrize("dtype", [np.float32, *(pytest.param(x, marks=pytest.mark.full) for x in (np.float64, np.float16))])
def test_strides_do_not_matter(rng, view, dtype):
    arrays = inputs(rng, 130, 150, batch=(3,), group=2, dtype=dtype)
    mask, bias = rng.random((3, 4, 130, 150)) < 0.7, normal(rng, 3, 4, 130, 150, dtype=dtype)
    for viewed in itertools.product((False, True), repeat=3):
        judge(*(view(x) if it else x for x, it in zip(arrays, viewed, strict=True)))
    judge(*map(view, arrays), mask=view(mask), bias=view(bias), allowed=view(mask))
    judge(*map(view, arrays), mask=mha.window(9, 9), query_offset=0, allowed=band(*arrays[:2], 9, 9))


# masks


@pytest.mark.parametrize(("left", "right"), BANDS.values(), ids=BANDS)
@pytest.mark.parametrize(("length", "num_keys"), ALIGNED)
def test_bands_of_every_alignment(rng, length, num_keys, left, right):
    x = inputs(rng, length, num_keys, heads=1)
    mask = mha.causal() if (left, right) == (None, 0) else mha.window(left, right)
    for offset in OFFSETS:
        allowed = band(*x[:2], left, right, offset)
        if allowed.any():  # otherwise no key remains
            judge(*x, mask=mask, query_offset=offset, allowed=allowed)


@pytest.mark.parametrize("lengths", [[0, 0], [0, 300], [1, 299], [64, 65], [300, 300], [400, 7]])
@pytest.mark.parametrize("mask", [None, mha.causal(), mha.window(40, 8)])
def test_key_lengths(rng, lengths, mask):
    x = inputs(rng, 150, 300, batch=(2,), group=2)
    left, right = {None: (None, None), mha.causal(): (None, 0)}.get(mask, (40, 8))
    allowed = band(*x[:2], left, right, 20) & (np.arange(300) < np.asarray(lengths)[:, None, None, None])
    given = mha.key_lengths(np.asarray(lengths))
    judge(*x, mask=given if mask is None else given & mask, query_offset=20, allowed=allowed)
    judge(*x, mask=given if mask is None else mask & given, query_offset=20, allowed=allowed, sink=normal(rng, 4))
    bias = normal(rng, 2, 1, 150, 300)
    judge(*x, mask=given if mask is None else mask & given, query_offset=20, allowed=allowed, bias=bias)


@pytest.mark.parametrize("lengths", [[300], [1] * 300, [0, 100, 100, 0, 100], [7, 7, 286], [64, 65, 65, 106]])
@pytest.mark.parametrize(("left", "right"), [(None, None), (None, 0), (9, 9), (70, 0)])
def test_packed_sequences(rng, lengths, left, right):
    x = inputs(rng, 300, 300, batch=(2,), group=2)
    ids = np.repeat(np.arange(len(lengths)), lengths)
    allowed = band(*x[:2], left, right) & (ids[:, None] == ids)
    mask = mha.packed(lengths) & mha.window(left, right) if (left, right) != (None, None) else mha.packed(lengths)
    judge(*x, mask=mask, allowed=allowed)
    judge(*x, mask=mask & mha.key_lengths(np.asarray([290, 3])), allowed=allowed & (ids >= 0) & _shorter([290, 3], 300))
    judge(*x, mask=mask, allowed=allowed, bias=normal(rng, 4, 1, 300), sink=normal(rng, 4))


def _shorter(lengths, num_keys):
    return np.arange(num_keys) < np.asarray(lengths)[:, None, None, None]


# other options


@pytest.mark.parametrize("scale", [0.0, -0.7, 1.0, 30.0, 1e4, 1e-30, 1e-160])
def test_any_scale(rng, scale):
    judge(*inputs(rng, 100, 120), scale=scale)
    for length, num_keys in ((5, 120), (4, 4)):  # pairs so few that they are computed without tiles
        x = inputs(rng, length, num_keys)
        judge(*x, scale=scale)
        judge(*x, scale=scale, mask=mha.causal(), query_offset=0, allowed=band(*x[:2], None, 0))


def test_a_scale_that_the_scores_make_up_for(rng):
    query, key, value = inputs(rng, 4, 4)
    query, key = query * np.float32(1e20), key * np.float32(1e19)
    judge(query, key, value, scale=1e-39)
    judge(query, key, value, scale=1e-39, mask=mha.causal(), allowed=band(query, key, None, 0))


@pytest.mark.parametrize("sink", [0.0, -1.0, 50.0, 1e4, -1e4, -np.inf])
@pytest.mark.parametrize("length", [3, 200])
def test_sinks(rng, sink, length):
    x = inputs(rng, length, 600)
    sinks = np.asarray([sink, 0.5], dtype=np.float32)
    nobody = np.zeros((length, 600), dtype=bool)
    if np.isfinite(sink):
        judge(*x, sink=sinks)
        judge(*x, sink=sinks, mask=mha.causal(), query_offset=-1, allowed=band(*x[:2], None, 0, -1))
        judge(*x, sink=sinks, mask=nobody, allowed=nobody)
    else:  # a sink without weight
        with mha.use_kernel("attention", "tiles"):
            with_sink, without = mha.attention_state(*x, sink=sinks), mha.attention_state(*x)
        np.testing.assert_allclose(with_sink.out[:, 0], without.out[:, 0], rtol=1e-6, atol=1e-6)
        np.testing.assert_allclose(with_sink.lse[:, 0], without.lse[:, 0], rtol=1e-6, atol=1e-6)


# all options together, in tiles of a few scores

any_problem = given(
    seed=st.integers(0, 2**32 - 1),
    rows=st.sampled_from([1, 3, 8, 512]),
    scratch=st.sampled_from([64, 512, 4096, 1 << 15]),
    edge=st.sampled_from([1, 3, 64]),
    narrow=st.sampled_from([0, 4, 100]),
    few=st.sampled_from([0, 4, 16]),
    held=st.sampled_from([10, 50, 500]),
    times=st.sampled_from([1.0, 8.0, 100.0]),
)


@settings(derandomize=True, deadline=None, max_examples=60)
@any_problem
def test_problems_in_any_tiles(**drawn):
    judge_in_tiles(**drawn)


@pytest.mark.full
@settings(derandomize=True, deadline=None, max_examples=300)
@any_problem
def test_any_problem_in_any_tiles(**drawn):
    judge_in_tiles(**drawn)


def judge_in_tiles(seed, rows, scratch, edge, narrow, few, held, times):
    p = random_problem(np.random.default_rng(seed), Limits(times=times, longest=24, widest=6, copies=3), dtype=np.float32)
    if 0 in (*p.query.shape, *p.key.shape, *p.value.shape) or (p.allowed is not None and not p.allowed.any()):
        return  # the algebra computes these
    with pytest.MonkeyPatch.context() as patch:
        limits = {"_ROWS": rows, "_SCRATCH": scratch, "_EDGE": edge, "_EDGE_PAIRS": 1, "_MIN_TASKS": 1, "_MASK_PAIRS": 64}
        limits |= {"_NARROW": narrow, "_NARROW_ROWS": 4, "BLOCK": 2}
        for name, number in limits.items():
            patch.setattr(kernel, name, number)
        patch.setattr(subproblem, "_SLAB", 5)
        for name, number in {"_FEW": few, "_HELD": held, "_SHORT": 0}.items():
            patch.setattr(tiles, name, number)
        options = {name: x for name, x in p.options(lambda x: x).items() if x is not None}
        judge(p.query, p.key, p.value, allowed=p.allowed, **options)
