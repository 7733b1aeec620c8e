"""Attention of mha_cupy in one kernel, its CUDA run on the host: at every border of its blocks, steps and parts.

Conformance judges it in test_cuda_attention.py; its problems are small, and those here go over several blocks. Tensor cores are
played by the definitions of the PTX ISA: what a device's own do is not in it.
"""

import sys
from dataclasses import replace
from functools import partial

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mha_core as mha
from cuda_on_host import judging, launched
from cuda_on_host.judging import kernels  # noqa: F401
from cuda_pieces import on_host as needs_compiler
from mha_core.dispatch.contract import Call
from mha_cupy import flash, flash_plan

pytestmark = needs_compiler
on_host, drawn, judge = (partial(function, "flash_on_host") for function in (judging.on_host, judging.drawn, judging.judge))
BFLOAT16 = ml_dtypes.bfloat16
each_dtype = pytest.mark.parametrize("dtype", [np.float16, BFLOAT16])


@pytest.fixture
def no_parts(monkeypatch):
    """Where a card has no place for more blocks, no keys are computed in parts."""
    monkeypatch.setattr(flash, "multiprocessors", lambda: 0)


def normal(rng, *shape, dtype=np.float16):
    return rng.normal(size=shape).astype(dtype)


def wide(x):
    return x.astype(np.float64)


# (batch, key heads, groups, queries, keys, width, width of values): several blocks of rows, several steps of keys
SHAPES = ((1, 1, 1, 150, 150, 16, 24), (2, 1, 3, 50, 130, 64, 64), (1, 2, 1, 70, 200, 72, 16), (1, 1, 2, 9, 300, 5, 7))


@each_dtype
def test_any_problem_over_several_blocks_and_steps(rng, dtype):
    found = 0
    for p in drawn(rng, 40, dtype=dtype, shapes=SHAPES, copies=2, depth=1):
        options = {name: value for name, value in p.options(lambda x: x).items() if value is not None}
        judge(p.query, p.key, p.value, allowed=p.allowed, whole_bias=None if p.bias is None else wide(p.bias), **options)
        found += 1
    assert found > 10


@pytest.mark.parametrize("num_keys", [1, 15, 16, 17, 63, 64, 65, 127, 128, 129])
@pytest.mark.usefixtures("no_parts")
def test_keys_that_end_anywhere_in_a_step(rng, num_keys):
    judge(normal(rng, 1, 1, 5, 16), normal(rng, 1, 1, num_keys, 16), normal(rng, 1, 1, num_keys, 16))


@pytest.mark.parametrize("num_rows", [1, 16, 17, 32, 33, 64, 65, 128, 129])
def test_rows_that_end_anywhere_in_a_block(rng, num_rows):
    judge(normal(rng, 1, 1, num_rows, 16), normal(rng, 1, 1, 70, 16), normal(rng, 1, 1, 70, 16))


@pytest.mark.parametrize("window", [(None, 0), (0, None), (3, 0), (40, 10), (64, 64)])
@pytest.mark.parametrize("offset", [0, 37, -60])
@pytest.mark.usefixtures("no_parts")
def test_bands_across_blocks(rng, window, offset):
    before, after = window
    x, y = normal(rng, 1, 2, 140, 16), normal(rng, 1, 1, 180, 16)
    q, k = np.arange(140)[:, None] + offset, np.arange(180)
    allowed = np.ones((140, 180), dtype=bool)
    allowed &= True if before is None else k >= q - before
    allowed &= True if after is None else k <= q + after
    judge(x, y, y, mask=mha.window(before, after), query_offset=offset, allowed=allowed)


@pytest.mark.usefixtures("no_parts")
def test_a_block_takes_no_step_that_none_of_its_queries_sees(rng):
    """Blocks are of 128 queries. Keys that all of a block may not see are NaN, which a product with weights of 0 would show."""
    query, key = normal(rng, 1, 1, 300, 16), normal(rng, 1, 1, 300, 16)

    def rows(mask, *, without):
        poisoned = key.copy()
        poisoned[:, :, without] = np.nan
        out = on_host(query, poisoned, poisoned, mask=mask).out[0, 0]
        np.testing.assert_array_equal(np.isnan(out).any(axis=-1), np.isnan(out).all(axis=-1))
        return out, on_host(query, key, key, mask=mask).out[0, 0]

    found, right = rows(mha.causal(), without=slice(256, None))
    assert found[:256].tobytes() == right[:256].tobytes() and np.isnan(found[256:]).all()
    found, right = rows(mha.window(10, 0), without=slice(None, 118))
    assert found[128:].tobytes() == right[128:].tobytes() and np.isnan(found[:118]).all()


@each_dtype
def test_heads_that_share_a_key_head_are_rows_of_one_block(rng, dtype):
    query, key = normal(rng, 2, 6, 3, 32, dtype=dtype), normal(rng, 2, 2, 90, 32, dtype=dtype)
    launched.clear()
    judge(query, key, key, mask=mha.causal(), query_offset=60, allowed=np.arange(90) <= np.arange(3)[:, None] + 60)
    first = launched[0]
    assert first.kernel == "flash" and first.block == 32, "nine rows are one warp's"


@each_dtype
@pytest.mark.parametrize("with_sink", [False, True])
def test_keys_in_parts(rng, dtype, with_sink):
    """Decoding: few rows and many keys, of which some parts see nothing at all."""
    query, key = normal(rng, 1, 4, 1, 16, dtype=dtype), normal(rng, 1, 2, 1100, 16, dtype=dtype)
    lengths = np.asarray([300])
    more = {"sink": rng.normal(size=4).astype(dtype)} if with_sink else {}
    for mask, allowed in ((None, None), (mha.key_lengths(lengths), np.arange(1100) < 300)):
        launched.clear()
        judge(query, key, key, mask=mask, allowed=allowed, **more)
        parts, combine = launched
        assert (parts.kernel, combine.kernel) == ("flash", "combine") and parts.grid == 2 * 4


def test_parts_of_a_row_that_sees_nothing(rng):
    query, key = normal(rng, 2, 1, 1, 16), normal(rng, 2, 1, 1100, 16)
    state = on_host(query, key, key, mask=mha.key_lengths(np.asarray([0, 1100])))
    assert launched[-1].kernel == "combine"
    assert not state.out[0].any() and state.lse[0, 0, 0] == -np.inf and np.isfinite(state.lse[1]).all()


@pytest.mark.parametrize("lengths", [(5, 60, 0, 75, 1), (140,), (64, 64, 12), (1,) * 140])
@pytest.mark.parametrize("causal", [False, True])
def test_sequences_end_to_end_are_one_launch(rng, lengths, causal):
    x = normal(rng, 2, 2, sum(lengths), 16)
    ids = np.repeat(np.arange(len(lengths)), lengths)
    allowed = ids[:, None] == ids
    mask = mha.packed(lengths)
    if causal:
        mask, allowed = mask & mha.causal(), allowed & np.tri(sum(lengths), dtype=bool)
    launched.clear()
    judge(x, x, x, mask=mask, allowed=allowed)
    assert len(launched) == 1


def test_alibi_of_sequences_end_to_end(rng):
    lengths, slopes = (30, 41), 2.0 ** -np.asarray([4, 8.0])
    x = normal(rng, 1, 2, 71, 16)
    ids, at = np.repeat([0, 1], lengths), np.arange(71)
    judge(
        x, x, x, mask=mha.packed(lengths), bias=mha.alibi(2),
        allowed=ids[:, None] == ids, whole_bias=-slopes[:, None, None] * np.abs(at[:, None] - at),
    )  # fmt: skip


@each_dtype
@pytest.mark.parametrize("scale", [-0.5, 0.0, 1e-46, 30.0])
def test_any_scale(rng, dtype, scale):
    """Great scores, those that grow where products fall, and those that are all 0."""
    allowed = np.tri(70, dtype=bool)
    judge(*(normal(rng, 1, 1, 70, 16, dtype=dtype) for _ in range(3)), scale=scale, mask=mha.causal(), allowed=allowed)


@pytest.mark.parametrize(("dtype", "size"), [(np.float16, 1e4), (BFLOAT16, 1e4), (BFLOAT16, 1e8)])
def test_scores_so_large_that_their_roundings_are(rng, dtype, size):
    query, key = ((rng.normal(size=(1, 2, 70, 64)) * size).astype(dtype) for _ in range(2))
    judge(query, key, normal(rng, 1, 2, 70, 64, dtype=dtype))


def test_a_sink_that_lies_apart(rng):
    query, key = normal(rng, 1, 6, 40, 16), normal(rng, 1, 3, 40, 16)
    judge(query, key, key, sink=normal(rng, 12, dtype=np.float32)[::2])


@pytest.mark.usefixtures("no_parts")
def test_many_equal_keys_are_not_lost_in_float16(rng):
    """Beside one weight of 1 there are 2000 of 2**-24: half the least that float16 tells apart, together a great deal."""
    key = np.zeros((1, 1, 2001, 16), np.float16)
    key[0, 0, 0, 0] = 1
    query = np.full((1, 1, 1, 16), 16.65, np.float16)
    value = normal(rng, 1, 1, 2001, 16) * 0 + 60000
    state = judge(query, key, value, scale=1.0)
    assert np.isfinite(state.out).all()


def test_what_does_not_change_is_kept_whole(rng):
    """The greatest score of each step is the same: to be multiplied by nearly 1 in each would be seen after a hundred."""
    query, key = np.full((1, 1, 16, 16), 7.3, np.float16), np.full((1, 1, 6400, 16), 3.1, np.float16)
    judge(query, key, normal(rng, 1, 1, 6400, 16))


def test_heads_as_they_lie(rng):
    """Split from (b, l, h d); at every second number; turned; one for the whole batch: read as they lie, or copied."""
    x = normal(rng, 2, 40, 3 * 32)
    heads = x.reshape(2, 40, 3, 32).transpose(0, 2, 1, 3)
    judge(heads, heads, heads)
    judge(heads[..., ::2], heads[:, :, ::-1, ::2], heads[..., ::-1])
    judge(heads[..., 1:], heads[..., 1:], heads)
    judge(heads, np.broadcast_to(heads[:1], heads.shape), heads[:1])
    turned = np.ascontiguousarray(heads.swapaxes(-1, -2)).swapaxes(-1, -2)
    judge(heads, turned, turned)


def test_rows_that_begin_between_two_places_of_16_bytes(rng):
    """Copies of 16 bytes would end the launch, on a device as here."""
    apart = normal(rng, 1, 2, 40, 20)[..., :16]
    shifted = normal(rng, 1 * 2 * 40 * 16 + 1)[1:].reshape(1, 2, 40, 16)
    whole = normal(rng, 1, 2, 40, 16)
    for query, key, value in ((apart, whole, whole), (whole, whole, apart), (whole, shifted, whole)):
        launched.clear()
        judge(query, key, value)
        assert "PACK=1" in launched[0].defines
    judge(whole, whole, whole)
    assert "PACK=8" in launched[-1].defines


@pytest.mark.parametrize("mask", [None, mha.causal(), mha.window(5, 5)])
def test_heads_share_the_cache_but_in_a_band_the_long_rows_begin(rng, mask):
    x = normal(rng, 1, 1, 40, 16)
    on_host(x, x, x, mask=mask)
    _, _, has_band, _ = launched[-1].args[-4:]
    assert has_band == (mask is not None)


@pytest.mark.parametrize("kernel_name", ["flash_on_host", "blocks_on_host"])
def test_heads_side_by_side_stay_so(rng, kernel_name):
    x = normal(rng, 2, 20, 6 * 16)
    heads = x.reshape(2, 20, 6, 16).swapaxes(1, 2)
    out = judging.judge(kernel_name, heads, heads[:, :2], heads[:, :2]).out
    assert out.strides == heads.strides
    assert judging.judge(kernel_name, heads.copy(), heads[:, :2], heads[:, :2]).out.flags.c_contiguous


def test_several_batch_axes_that_broadcast_differently(rng):
    query, key = normal(rng, 2, 1, 3, 4, 6, 8), normal(rng, 1, 2, 3, 2, 70, 8)
    value = normal(rng, 2, 2, 3, 2, 70, 8)
    allowed = rng.random((2, 1, 1, 4, 6, 70)) < 0.7
    bias = normal(rng, 2, 1, 1, 6, 70)
    judge(query, key, value, mask=allowed, bias=bias, allowed=allowed, whole_bias=wide(bias))


def test_a_bias_of_a_wider_dtype(rng):
    x = normal(rng, 1, 2, 20, 16)
    bias = normal(rng, 2, 20, 20, dtype=np.float32)
    judge(x, x, x, bias=bias, whole_bias=wide(bias))


@pytest.mark.usefixtures("no_parts")
def test_poison_changes_no_bit(rng):
    for p in drawn(rng, 15, dtype=np.float16, shapes=SHAPES[1:2], depth=1):
        clean = on_host(p.query, p.key, p.value, **p.options(lambda x: x))
        poisoned = on_host(p.query, *p.poisoned(), **p.options(lambda x: x))
        for one, other in zip(clean, poisoned, strict=True):
            assert one.tobytes() == other.tobytes()


# what is said of it, and how it is cut


def call(dtype=np.float16, **shapes):
    given = {"query": (1, 2, 3, 8), "key": (1, 2, 3, 8), "value": (1, 2, 3, 8)} | shapes
    return Call("attention", tuple(given.items()), np.dtype(dtype), None, options=(("query_offset", 0),))


def test_reasons_against(monkeypatch):
    assert flash.supports(call()) is None and flash.supports(call(BFLOAT16)) is None
    assert flash.supports(call(np.float32)) == "computes in float16 and bfloat16, not float32"
    assert flash.supports(call(query=(1, 2, 3, 264))) == "takes head dimensions up to 256, not 264"
    assert flash.supports(call(value=(1, 2, 3, 300))) == "takes head dimensions up to 256, not 300"
    assert flash.supports(call(query=(0, 2, 3, 8))) == "has no empty axes"
    assert flash.supports(call(sink=(300,))) is None
    many = flash.supports(call(query=(2**16, 2, 1, 8), key=(1, 2, 3, 8), value=(2**14, 1, 2, 3, 8)))
    assert many == "counts up to 2147482624 queries of all heads, not 2147483648"
    alibi = replace(call(), features=frozenset({"alibi"}))
    assert flash.supports(alibi) is None
    for offset in (None, 2**29, -(2**29)):
        said = flash.supports(replace(alibi, options=(("query_offset", offset),)))
        assert said == "has ALiBi where the host knows the query offset, and it is below 536870912"
    monkeypatch.setattr(flash, "capability", lambda: 75)
    assert flash.supports(call()) == "needs compute capability 8.0, not 7.5"


def test_what_it_has_no_words_for_it_is_not_given(rng):
    x = normal(rng, 1, 2, 3, 8)
    for options, feature in (
        ({"mask": mha.causal() | mha.prefix(2)}, "mask"),
        ({"bias": mha.relative_bias(normal(rng, 8, 2), bidirectional=True, max_distance=9)}, "relative_bias"),
    ):
        with pytest.raises(mha.KernelUnsupported, match=f"does not handle {feature}"):
            on_host(x, x, x, **options)


@given(st.integers(1, 256), st.integers(1, 256), st.integers(1, 10**6), st.booleans())
def test_a_block_fits_the_rows_and_the_smallest_card(dim, value_dim, rows, plain):
    shape = flash_plan.shape_of_block(dim, value_dim, rows, plain=plain)
    assert shape.rows == 16 or shape.rows < 2 * rows or (shape.rows == 64 and rows > 32)
    assert shape.keys % 16 == 0
    assert 2 * ((shape.rows + shape.keys) * flash_plan._pitch(dim) + shape.keys * flash_plan._pitch(value_dim)) <= 99 << 10, (
        "of compute capability 8.6 and 8.9, the least of those it is for"
    )


@given(st.integers(1, 10**4), st.integers(1, 10**6), st.sampled_from([1, 17, 100]), st.integers(1, 200))
def test_parts_only_where_a_card_is_idle_and_keys_are_many(blocks, num_keys, rows, multiprocessors):
    shape = flash_plan.shape_of_block(128, 128, rows, plain=True)
    parts = flash_plan.parts_of_keys(blocks, num_keys, shape, multiprocessors)
    assert parts == 1 or (parts * blocks * shape.warps <= 8 * multiprocessors and num_keys // parts >= 4 * shape.keys)


def test_one_query_of_one_head_takes_a_whole_card():
    assert flash_plan.cut((1, 1, 1, 1, 128), (10**6, 128), plain=True, multiprocessors=132)[1] == 8 * 132


class Cards:
    """What is asked of CuPy about its devices, which have no hash."""

    def __init__(self):
        self.current = 0
        self.cuda = self
        self.runtime = self

    def getDevice(self):  # noqa: N802
        return self.current

    def Device(self, at):  # noqa: N802
        card = type("Device", (), {"__hash__": None})()
        card.compute_capability, card.attributes = ("80", "120")[at], {"MultiProcessorCount": (108, 188)[at]}
        return card


def test_what_a_card_is_is_asked_of_the_current_one(monkeypatch):
    def forget():
        for found in (flash._capability, flash._multiprocessors):
            found.cache_clear()

    monkeypatch.undo()  # the host that stands in for it
    cards = Cards()
    monkeypatch.setitem(sys.modules, "cupy", cards)
    forget()
    assert (flash.capability(), flash.multiprocessors()) == (80, 108)
    cards.current = 1
    assert (flash.capability(), flash.multiprocessors()) == (120, 188)
    assert flash.supports(call()) is None
    forget()
