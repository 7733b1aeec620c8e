"""The attention kernel ``flash`` of mha_cupy, with its CUDA run on the host: correct at every border of blocks, steps, splits.

The problems of test_cuda_conformance.py are small; these span several thread blocks. Tensor cores are emulated as the PTX ISA
defines them; a device's own rounding is not tested.
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
from cuda_ops import needs_compiler, without_time_limits
from mha_core.dispatch.contract import Call
from mha_cupy.attention import flash, flash_config

pytestmark = needs_compiler
on_host, drawn, judge = (partial(function, "flash_on_host") for function in (judging.on_host, judging.drawn, judging.judge))
BFLOAT16 = ml_dtypes.bfloat16
each_dtype = pytest.mark.parametrize("dtype", [np.float16, BFLOAT16])


@pytest.fixture
def no_splits(monkeypatch):
    """A GPU without idle multiprocessors: the keys are never split."""
    monkeypatch.setattr(flash, "multiprocessors", lambda: 0)


def normal(rng, *shape, dtype=np.float16):
    return rng.normal(size=shape).astype(dtype)


def wide(x):
    return x.astype(np.float64)


# (batch, key heads, groups, queries, keys, head_dim, value_dim): several blocks of rows, several steps of keys
SHAPES = ((1, 1, 1, 150, 150, 16, 24), (2, 1, 3, 50, 130, 64, 64), (1, 2, 1, 70, 200, 72, 16), (1, 1, 2, 9, 300, 5, 7))


@each_dtype
def test_random_problems_over_several_blocks_and_steps(rng, dtype):
    found = 0
    for p in drawn(rng, 40, dtype=dtype, shapes=SHAPES, copies=2, depth=1):
        options = {name: value for name, value in p.options(lambda x: x).items() if value is not None}
        judge(p.query, p.key, p.value, allowed=p.allowed, whole_bias=None if p.bias is None else wide(p.bias), **options)
        found += 1
    assert found > 10


@pytest.mark.parametrize("num_keys", [1, 15, 16, 17, 63, 64, 65, 127, 128, 129])
@pytest.mark.usefixtures("no_splits")
def test_keys_that_end_anywhere_in_a_step(rng, num_keys):
    judge(normal(rng, 1, 1, 5, 16), normal(rng, 1, 1, num_keys, 16), normal(rng, 1, 1, num_keys, 16))


@pytest.mark.parametrize("num_rows", [1, 16, 17, 32, 33, 64, 65, 128, 129])
def test_rows_that_end_anywhere_in_a_block(rng, num_rows):
    judge(normal(rng, 1, 1, num_rows, 16), normal(rng, 1, 1, 70, 16), normal(rng, 1, 1, 70, 16))


@pytest.mark.parametrize("window", [(None, 0), (0, None), (3, 0), (40, 10), (64, 64)])
@pytest.mark.parametrize("offset", [0, 37, -60])
@pytest.mark.usefixtures("no_splits")
def test_bands_across_blocks(rng, window, offset):
    before, after = window
    x, y = normal(rng, 1, 2, 140, 16), normal(rng, 1, 1, 180, 16)
    q, k = np.arange(140)[:, None] + offset, np.arange(180)
    allowed = np.ones((140, 180), dtype=bool)
    allowed &= True if before is None else k >= q - before
    allowed &= True if after is None else k <= q + after
    judge(x, y, y, mask=mha.window(before, after), query_offset=offset, allowed=allowed)


@pytest.mark.usefixtures("no_splits")
def test_a_block_skips_keys_that_none_of_its_queries_sees(rng):
    """A block has 128 queries. Keys that no query of a block sees are NaN, which would show even with weights of 0."""
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
def test_heads_that_share_a_key_head_are_in_one_block(rng, dtype):
    query, key = normal(rng, 2, 6, 3, 32, dtype=dtype), normal(rng, 2, 2, 90, 32, dtype=dtype)
    launched.clear()
    judge(query, key, key, mask=mha.causal(), query_offset=60, allowed=np.arange(90) <= np.arange(3)[:, None] + 60)
    first = launched[0]
    assert first.kernel == "flash" and first.block == 32, "nine rows need one warp"


@each_dtype
@pytest.mark.parametrize("with_sink", [False, True])
def test_split_keys(rng, dtype, with_sink):
    """Decoding: few rows and many keys. In some splits every key is masked."""
    query, key = normal(rng, 1, 4, 1, 16, dtype=dtype), normal(rng, 1, 2, 1100, 16, dtype=dtype)
    lengths = np.asarray([300])
    more = {"sink": rng.normal(size=4).astype(dtype)} if with_sink else {}
    for mask, allowed in ((None, None), (mha.key_lengths(lengths), np.arange(1100) < 300)):
        launched.clear()
        judge(query, key, key, mask=mask, allowed=allowed, **more)
        splits, combine = launched
        assert (splits.kernel, combine.kernel) == ("flash", "combine") and splits.grid == 2 * 4


def test_splits_of_a_fully_masked_row(rng):
    query, key = normal(rng, 2, 1, 1, 16), normal(rng, 2, 1, 1100, 16)
    state = on_host(query, key, key, mask=mha.key_lengths(np.asarray([0, 1100])))
    assert launched[-1].kernel == "combine"
    assert not state.out[0].any() and state.lse[0, 0, 0] == -np.inf and np.isfinite(state.lse[1]).all()


@pytest.mark.parametrize("lengths", [(5, 60, 0, 75, 1), (140,), (64, 64, 12), (1,) * 140])
@pytest.mark.parametrize("causal", [False, True])
def test_packed_sequences_are_one_launch(rng, lengths, causal):
    x = normal(rng, 2, 2, sum(lengths), 16)
    ids = np.repeat(np.arange(len(lengths)), lengths)
    allowed = ids[:, None] == ids
    mask = mha.packed(lengths)
    if causal:
        mask, allowed = mask & mha.causal(), allowed & np.tri(sum(lengths), dtype=bool)
    launched.clear()
    judge(x, x, x, mask=mask, allowed=allowed)
    assert len(launched) == 1


def test_alibi_with_packed_sequences(rng):
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
    """Large scores, scores that grow as products fall, and scores that are all 0."""
    allowed = np.tri(70, dtype=bool)
    judge(*(normal(rng, 1, 1, 70, 16, dtype=dtype) for _ in range(3)), scale=scale, mask=mha.causal(), allowed=allowed)


@pytest.mark.parametrize(("dtype", "size"), [(np.float16, 1e4), (BFLOAT16, 1e4), (BFLOAT16, 1e8)])
def test_scores_with_large_rounding_errors(rng, dtype, size):
    query, key = ((rng.normal(size=(1, 2, 70, 64)) * size).astype(dtype) for _ in range(2))
    judge(query, key, normal(rng, 1, 2, 70, 64, dtype=dtype))


def test_a_strided_sink(rng):
    query, key = normal(rng, 1, 6, 40, 16), normal(rng, 1, 3, 40, 16)
    judge(query, key, key, sink=normal(rng, 12, dtype=np.float32)[::2])


@pytest.mark.usefixtures("no_splits")
def test_many_small_weights_are_not_lost_in_float16(rng):
    """Next to one weight of 1 there are 2000 of 2**-24, half of what float16 resolves there; together they matter."""
    key = np.zeros((1, 1, 2001, 16), np.float16)
    key[0, 0, 0, 0] = 1
    query = np.full((1, 1, 1, 16), 16.65, np.float16)
    value = normal(rng, 1, 1, 2001, 16) * 0 + 60000
    state = judge(query, key, value, scale=1.0)
    assert np.isfinite(state.out).all()


def test_sums_are_not_rescaled_while_the_maximum_stays(rng):
    """The largest score is the same in each of a hundred steps; a factor of nearly 1 in each would add up."""
    query, key = np.full((1, 1, 16, 16), 7.3, np.float16), np.full((1, 1, 6400, 16), 3.1, np.float16)
    judge(query, key, normal(rng, 1, 1, 6400, 16))


def test_heads_of_any_strides(rng):
    """Heads split from (b, l, h d), every second element, transposed, broadcast over the batch: read in place, or copied."""
    x = normal(rng, 2, 40, 3 * 32)
    heads = x.reshape(2, 40, 3, 32).transpose(0, 2, 1, 3)
    judge(heads, heads, heads)
    judge(heads[..., ::2], heads[:, :, ::-1, ::2], heads[..., ::-1])
    judge(heads[..., 1:], heads[..., 1:], heads)
    judge(heads, np.broadcast_to(heads[:1], heads.shape), heads[:1])
    turned = np.ascontiguousarray(heads.swapaxes(-1, -2)).swapaxes(-1, -2)
    judge(heads, turned, turned)


def test_rows_that_are_not_aligned_to_16_bytes(rng):
    """A copy of 16 bytes would fail, on a device and here."""
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
def test_only_a_band_changes_the_order_of_blocks(rng, mask):
    x = normal(rng, 1, 1, 40, 16)
    on_host(x, x, x, mask=mask)
    _, _, has_band, _ = launched[-1].args[-4:]
    assert has_band == (mask is not None)


@pytest.mark.parametrize("kernel_name", ["flash_on_host", "blocks_on_host"])
def test_out_has_the_query_s_order_of_heads(rng, kernel_name):
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


@pytest.mark.usefixtures("no_splits")
def test_poison_changes_no_bit(rng):
    for p in drawn(rng, 15, dtype=np.float16, shapes=SHAPES[1:2], depth=1):
        clean = on_host(p.query, p.key, p.value, **p.options(lambda x: x))
        poisoned = on_host(p.query, *p.poisoned(), **p.options(lambda x: x))
        for one, other in zip(clean, poisoned, strict=True):
            assert one.tobytes() == other.tobytes()


# supports, and the launch configuration


def call(dtype=np.float16, **shapes):
    given = {"query": (1, 2, 3, 8), "key": (1, 2, 3, 8), "value": (1, 2, 3, 8)} | shapes
    return Call("attention", tuple(given.items()), np.dtype(dtype), None, options=(("query_offset", 0),))


def test_refusal_reasons(monkeypatch):
    assert flash.supports(call()) is None and flash.supports(call(BFLOAT16)) is None
    assert flash.supports(call(np.float32)) == "supports float16 and bfloat16, not float32"
    assert flash.supports(call(query=(1, 2, 3, 264))) == "supports head dimensions up to 256, not 264"
    assert flash.supports(call(value=(1, 2, 3, 300))) == "supports head dimensions up to 256, not 300"
    assert flash.supports(call(query=(0, 2, 3, 8))) == "does not support empty axes"
    assert flash.supports(call(sink=(300,))) is None
    many = flash.supports(call(query=(2**16, 2, 1, 8), key=(1, 2, 3, 8), value=(2**14, 1, 2, 3, 8)))
    assert many == "supports up to 2147482624 queries over all heads, not 2147483648"
    alibi = replace(call(), features=frozenset({"alibi"}))
    assert flash.supports(alibi) is None
    for offset in (None, 2**29, -(2**29)):
        reason = flash.supports(replace(alibi, options=(("query_offset", offset),)))
        assert reason == "supports ALiBi only if query_offset is an int below 536870912"
    monkeypatch.setattr(flash, "capability", lambda: 75)
    assert flash.supports(call()) == "needs compute capability 8.0, not 7.5"


def test_undeclared_features_are_refused(rng):
    x = normal(rng, 1, 2, 3, 8)
    for options, feature in (
        ({"mask": mha.causal() | mha.prefix(2)}, "mask"),
        ({"bias": mha.relative_bias(normal(rng, 8, 2), bidirectional=True, max_distance=9)}, "relative_bias"),
    ):
        with pytest.raises(mha.KernelUnsupported, match=f"does not handle {feature}"):
            on_host(x, x, x, **options)


@without_time_limits
@given(st.integers(1, 256), st.integers(1, 256), st.integers(1, 10**6), st.booleans())
def test_a_thread_block_fits_the_rows_and_the_smallest_gpu(dim, value_dim, rows, plain):
    block = flash_config.thread_block(dim, value_dim, rows, plain=plain)
    assert block.rows == 16 or block.rows < 2 * rows or (block.rows == 64 and rows > 32)
    assert block.keys % 16 == 0
    shared = 2 * ((block.rows + block.keys) * flash_config.pitch(dim) + block.keys * flash_config.pitch(value_dim))
    assert shared <= 99 << 10, "compute capability 8.6 and 8.9 have the least shared memory of those supported"


@without_time_limits
@given(st.integers(1, 10**4), st.integers(1, 10**6), st.sampled_from([1, 17, 100]), st.integers(1, 200))
def test_keys_are_split_only_if_the_gpu_is_idle_and_keys_are_many(blocks, num_keys, rows, multiprocessors):
    block = flash_config.thread_block(128, 128, rows, plain=True)
    splits = flash_config.num_splits(blocks, num_keys, block, multiprocessors)
    assert splits == 1 or (splits * blocks * block.warps <= 8 * multiprocessors and num_keys // splits >= 4 * block.keys)


def test_one_query_of_one_head_occupies_the_whole_gpu():
    _, splits = flash_config.block_and_splits((1, 1, 1, 1, 128), (10**6, 128), plain=True, multiprocessors=132)
    assert splits == 8 * 132


class Devices:
    """A stand-in for CuPy with two devices, which are not hashable."""

    def __init__(self):
        self.current = 0
        self.cuda = self
        self.runtime = self

    def getDevice(self):  # noqa: N802
        return self.current

    def Device(self, at):  # noqa: N802
        device = type("Device", (), {"__hash__": None})()
        device.compute_capability, device.attributes = ("80", "120")[at], {"MultiProcessorCount": (108, 188)[at]}
        return device


def test_the_current_device_is_asked_for_its_properties(monkeypatch):
    def forget():
        for found in (flash._capability, flash._multiprocessors):
            found.cache_clear()

    monkeypatch.undo()  # remove the stand-in
    devices = Devices()
    monkeypatch.setitem(sys.modules, "cupy", devices)
    forget()
    assert (flash.capability(), flash.multiprocessors()) == (80, 108)
    devices.current = 1
    assert (flash.capability(), flash.multiprocessors()) == (120, 188)
    assert flash.supports(call()) is None
    forget()
