"""The kernel ``flash`` alone: splits of the keys, what blocks skip, thread blocks, and the device's properties."""

import sys
from functools import partial

import numpy as np
import pytest
from cuda_kernels import DTYPES, needs_compiler
from cuda_on_host import judging, launched

import mha_core as mha
from mha_core.ops.attend_vjp import attention_gradients
from mha_cupy.attention import flash

pytestmark = needs_compiler
on_host, drawn, judge = (partial(function, "flash_on_host") for function in (judging.on_host, judging.drawn, judging.judge))
each_dtype = pytest.mark.parametrize("dtype", [DTYPES["float16"], DTYPES["bfloat16"]])
GPU_WITH_LEAST_SHARED_MEMORY = 99 << 10  # bytes of a thread block, for compute capability 8.6 and 8.9


@pytest.fixture
def no_splits(monkeypatch):
    """A GPU without idle multiprocessors: the keys are never split."""
    monkeypatch.setattr(flash, "multiprocessors", lambda: 0)


@pytest.fixture
def normal(rng):
    return lambda *shape, dtype=np.float16: rng.normal(size=shape).astype(dtype)


# (batch, key heads, groups, queries, keys, head_dim, value_dim): several blocks of rows, several steps of keys
SHAPES = ((1, 1, 1, 150, 150, 16, 24), (2, 1, 3, 50, 130, 64, 64), (1, 2, 1, 70, 200, 72, 16), (1, 1, 2, 9, 300, 5, 7))


@each_dtype
def test_random_problems_over_several_blocks_and_steps(rng, dtype):
    problems = list(drawn(rng, 40, dtype=dtype, shapes=SHAPES, copies=2, depth=1))
    assert len(problems) > 10
    for p in problems:
        options = {name: value for name, value in p.options(lambda x: x).items() if value is not None}
        bias = None if p.bias is None else p.bias.astype(np.float64)
        judge(p.query, p.key, p.value, allowed=p.allowed, whole_bias=bias, **options)


@pytest.mark.usefixtures("no_splits")
def test_a_block_skips_keys_that_none_of_its_queries_sees(normal):
    """A block has 128 queries. Keys that no query of a block sees are NaN, which would show even with weights of 0."""
    query, key = normal(1, 1, 300, 16), normal(1, 1, 300, 16)

    def rows(mask, *, without):
        poisoned = key.copy()
        poisoned[:, :, without] = np.nan
        out = on_host(query, poisoned, poisoned, mask=mask).out[0, 0]
        np.testing.assert_array_equal(np.isnan(out).any(axis=-1), np.isnan(out).all(axis=-1))
        return out, on_host(query, key, key, mask=mask).out[0, 0]

    poisoned, clean = rows(mha.causal(), without=slice(256, None))
    assert poisoned[:256].tobytes() == clean[:256].tobytes() and np.isnan(poisoned[256:]).all()
    poisoned, clean = rows(mha.window(10, 0), without=slice(None, 118))
    assert poisoned[128:].tobytes() == clean[128:].tobytes() and np.isnan(poisoned[:118]).all()


def test_gradients_skip_what_a_block_cannot_see(normal):
    """Beside NaN that a block must not read, its gradients are the same bits; a weight of 0 times NaN would show."""
    x, d_out = normal(1, 1, 300, 16), normal(1, 1, 300, 16)
    state = mha.attention_state(x, x, x, mask=mha.causal())

    def gradients(key, d_out):
        wanted = frozenset({"query", "key", "value"})
        with mha.use_kernel("attention_vjp", "flash_on_host"):
            return attention_gradients(x, key, key, None, *state, d_out, None, wanted=wanted, mask=mha.causal())

    clean, late, early = gradients(x, d_out), x.copy(), d_out.copy()
    late[:, :, 256:] = early[:, :, :64] = np.nan
    poisoned = gradients(late, d_out).query
    np.testing.assert_array_equal(poisoned[:, :, :256], clean.query[:, :, :256])
    assert np.isnan(poisoned[:, :, 256:]).any()
    poisoned = gradients(x, early)
    for name in ("key", "value"):
        np.testing.assert_array_equal(getattr(poisoned, name)[:, :, 64:], getattr(clean, name)[:, :, 64:])
        assert np.isnan(getattr(poisoned, name)[:, :, :64]).any()


@each_dtype
def test_heads_that_share_a_key_head_are_in_one_block(normal, dtype):
    query, key = normal(2, 6, 3, 32, dtype=dtype), normal(2, 2, 90, 32, dtype=dtype)
    launched.clear()
    judge(query, key, key, mask=mha.causal(), query_offset=60, allowed=np.arange(90) <= np.arange(3)[:, None] + 60)
    assert (launched[0].kernel, launched[0].block) == ("flash", 32), "nine rows need one warp"


@each_dtype
@pytest.mark.parametrize("with_sink", [False, True])
def test_split_keys(rng, normal, dtype, with_sink):
    """Decoding: few rows and many keys. In some splits every key is masked."""
    query, key = normal(1, 4, 1, 16, dtype=dtype), normal(1, 2, 1100, 16, dtype=dtype)
    sink = {"sink": rng.normal(size=4).astype(dtype)} if with_sink else {}
    for mask, allowed in ((None, None), (mha.key_lengths(np.asarray([300])), np.arange(1100) < 300)):
        launched.clear()
        judge(query, key, key, mask=mask, allowed=allowed, **sink)
        splits, combine = launched
        assert (splits.kernel, combine.kernel) == ("flash", "combine") and splits.grid == 2 * 4


def test_splits_of_a_fully_masked_row(normal):
    query, key = normal(2, 1, 1, 16), normal(2, 1, 1100, 16)
    state = on_host(query, key, key, mask=mha.key_lengths(np.asarray([0, 1100])))
    assert launched[-1].kernel == "combine"
    assert not state.out[0].any() and state.lse[0, 0, 0] == -np.inf and np.isfinite(state.lse[1]).all()


@each_dtype
@pytest.mark.usefixtures("no_splits")
def test_a_fully_masked_row_is_zero_beside_nan_and_its_lse_is_the_sink(normal, dtype):
    """A weight of 0 times NaN would show, and so would a sink that was multiplied by log2(e) and back."""
    query, key = normal(1, 64, 2, 16, dtype=dtype), normal(1, 64, 40, 16, dtype=dtype)
    value, sink, seen = normal(1, 64, 40, 16, dtype=dtype), normal(64, dtype=dtype), np.zeros((2, 40), bool)
    value[..., 5, :], seen[1, 5] = np.nan, True
    out, lse = on_host(query, key, value, mask=seen, sink=sink)
    assert not out[:, :, 0].any() and np.isnan(out[:, :, 1]).all()
    np.testing.assert_array_equal(lse[0, :, 0], sink.astype(np.float32))


@pytest.mark.usefixtures("no_splits")
def test_many_small_weights_are_not_lost_in_float16():
    """Next to one weight of 1 there are 2000 of 2**-24, half of what float16 resolves there; together they matter."""
    key, value = np.zeros((1, 1, 2001, 16), np.float16), np.full((1, 1, 2001, 16), 60000, np.float16)
    key[0, 0, 0, 0] = 1
    assert np.isfinite(judge(np.full((1, 1, 1, 16), 16.65, np.float16), key, value, scale=1.0).out).all()


def test_sums_are_not_rescaled_while_the_maximum_stays(normal):
    """The largest score is the same in each of a hundred steps; a factor of nearly 1 in each would add up."""
    query, key = np.full((1, 1, 16, 16), 7.3, np.float16), np.full((1, 1, 6400, 16), 3.1, np.float16)
    judge(query, key, normal(1, 1, 6400, 16))


@pytest.mark.parametrize("mask", [None, mha.causal(), mha.window(5, 5)])
def test_only_a_band_changes_the_order_of_blocks(normal, mask):
    x = normal(1, 1, 40, 16)
    on_host(x, x, x, mask=mask)
    _, _, has_band, _ = launched[-1].args[-4:]
    assert has_band == (mask is not None)


def test_gradients_are_sums_of_several_blocks(rng, normal):
    query, key = normal(2, 6, 50, 64), normal(2, 2, 130, 64)
    launched.clear()
    judging.judge_gradients("flash_on_host", rng, query, key, key)
    assert [launch.kernel for launch in launched] == ["row_terms", "flash_vjp", "flash_vjp"] * 2
    assert all(launch.grid > 2 * 2 for launch in launched if launch.kernel == "flash_vjp"), "one block has it all"


class Devices:
    """A stand-in for CuPy with two devices, which are not hashable."""

    def __init__(self):
        self.current, self.cuda, self.runtime = 0, self, self

    def getDevice(self):  # noqa: N802
        return self.current

    def Device(self, at):  # noqa: N802
        device = type("Device", (), {"__hash__": None})()
        device.compute_capability, device.attributes = ("80", "120")[at], {"MultiProcessorCount": (108, 188)[at]}
        return device


def test_the_current_device_is_asked_for_its_properties(monkeypatch):
    monkeypatch.undo()  # remove the stand-in
    devices = Devices()
    monkeypatch.setitem(sys.modules, "cupy", devices)
    flash._numbers.cache_clear()
    assert (flash.capability(), flash.multiprocessors()) == (80, 108)
    devices.current = 1
    assert (flash.capability(), flash.multiprocessors()) == (120, 188)
    flash._numbers.cache_clear()
