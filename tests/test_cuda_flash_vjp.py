"""Gradients of attention by the kernel ``flash`` of mha_cupy, with its CUDA run on the host: right at every border of blocks.

The problems of test_cuda_conformance.py are small; these span several thread blocks and steps, in both passes.
"""

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
from mha_core.ops.attend_vjp import attention_gradients
from mha_cupy.attention import flash, flash_vjp

pytestmark = needs_compiler
gradients, judge = (partial(function, "flash_on_host") for function in (judging.gradients_on_host, judging.judge_gradients))
BFLOAT16 = ml_dtypes.bfloat16
each_dtype = pytest.mark.parametrize("dtype", [np.float16, BFLOAT16])


def normal(rng, *shape, dtype=np.float16):
    return rng.normal(size=shape).astype(dtype)


@each_dtype
@pytest.mark.parametrize("shape", [(1, 1, 1, 150, 140, 16, 24), (2, 2, 3, 50, 130, 64, 64), (1, 2, 1, 70, 100, 128, 72)])
def test_several_blocks_and_steps(rng, dtype, shape):
    """(batch, key heads, groups, queries, keys, head_dim, value_dim)."""
    batch, heads, groups, rows, cols, dim, value_dim = shape
    query = normal(rng, batch, heads * groups, rows, dim, dtype=dtype)
    key, value = normal(rng, batch, heads, cols, dim, dtype=dtype), normal(rng, batch, heads, cols, value_dim, dtype=dtype)
    launched.clear()
    judge(rng, query, key, value)
    assert [launch.kernel for launch in launched] == ["row_terms", "flash_vjp", "flash_vjp"] * 2
    assert all(launch.grid > batch * heads for launch in launched if launch.kernel == "flash_vjp"), "one block has it all"


@pytest.mark.parametrize("size", [1, 15, 16, 17, 33, 63, 64, 65, 129])
def test_queries_and_keys_that_end_anywhere(rng, size):
    judge(rng, normal(rng, 1, 1, 20, 16), normal(rng, 1, 1, size, 16), normal(rng, 1, 1, size, 16))
    judge(rng, normal(rng, 1, 1, size, 16), normal(rng, 1, 1, 20, 16), normal(rng, 1, 1, 20, 16))


@pytest.mark.parametrize("window", [(None, 0), (0, None), (3, 0), (40, 10), (64, 64)])
@pytest.mark.parametrize("offset", [0, 37, -60])
def test_bands_across_blocks(rng, window, offset):
    before, after = window
    x, y = normal(rng, 1, 2, 140, 16), normal(rng, 1, 1, 180, 16)
    q, k = np.arange(140)[:, None] + offset, np.arange(180)
    allowed = np.ones((140, 180), dtype=bool)
    allowed &= True if before is None else k >= q - before
    allowed &= True if after is None else k <= q + after
    judge(rng, x, y, y, mask=mha.window(before, after), query_offset=offset, allowed=allowed)


def test_blocks_skip_what_they_cannot_see(rng):
    """Beside NaN that a block must not read, its gradients are the same bits; a weight of 0 times NaN would show."""
    x, d_out = normal(rng, 1, 1, 300, 16), normal(rng, 1, 1, 300, 16)
    state = mha.attention_state(x, x, x, mask=mha.causal())

    def found(key, d_out):
        wanted = frozenset({"query", "key", "value"})
        with mha.use_kernel("attention_vjp", "flash_on_host"):
            return attention_gradients(x, key, key, None, *state, d_out, None, wanted=wanted, mask=mha.causal())

    right, late, nothing = found(x, d_out), x.copy(), d_out.copy()
    late[:, :, 256:] = nothing[:, :, :64] = np.nan
    poisoned = found(late, d_out).query
    np.testing.assert_array_equal(poisoned[:, :, :256], right.query[:, :, :256])
    assert np.isnan(poisoned[:, :, 256:]).any()
    poisoned = found(x, nothing)
    for name in ("key", "value"):
        np.testing.assert_array_equal(getattr(poisoned, name)[:, :, 64:], getattr(right, name)[:, :, 64:])
        assert np.isnan(getattr(poisoned, name)[:, :, :64]).any()


@pytest.mark.parametrize("lengths", [(5, 60, 0, 75, 1), (140,), (64, 64, 12), (1,) * 140])
@pytest.mark.parametrize("causal", [False, True])
def test_packed_sequences_are_in_the_same_launches(rng, lengths, causal):
    x, total = normal(rng, 2, 2, sum(lengths), 16), sum(lengths)
    ids = np.repeat(np.arange(len(lengths)), lengths)
    mask, allowed = mha.packed(lengths), ids[:, None] == ids
    if causal:
        mask, allowed = mask & mha.causal(), allowed & np.tri(total, dtype=bool)
    launched.clear()
    judge(rng, x, x, x, mask=mask, allowed=allowed)
    assert len(launched) == 2 * 3


def test_key_lengths_and_what_nobody_sees(rng):
    """Keys beyond a length, and queries without keys, have gradients of exactly 0, whatever they hold."""
    query, key, value = normal(rng, 3, 2, 90, 16), normal(rng, 3, 1, 130, 16), normal(rng, 3, 1, 130, 16)
    lengths = np.asarray([0, 70, 130])
    options = {"mask": mha.key_lengths(lengths)}
    allowed = (np.arange(130) < lengths[:, None])[:, None, None, :]
    found = judge(rng, query, key, value, allowed=allowed, **options)
    assert not found["query"][0].any() and not found["key"][1, :, 70:].any() and not found["value"][0].any()
    d_out, d_lse = normal(rng, 3, 2, 90, 16), normal(rng, 3, 2, 90, dtype=np.float32)
    clean = gradients(query, key, value, d_out, d_lse, **options)
    for x, unseen in ((key, 0), (value, 0)):
        x[1, unseen, 70:], x[0] = np.nan, np.inf
    d_out[0], d_lse[0] = np.nan, np.nan
    poisoned = gradients(query, key, value, d_out, d_lse, **options)
    assert {name: x.tobytes() for name, x in poisoned.items()} == {name: x.tobytes() for name, x in clean.items()}


@each_dtype
@pytest.mark.parametrize("wanted", [("query", "key", "value"), ("sink",), ("query", "sink"), ("value",), ("key",)])
def test_a_sink_and_each_gradient_alone(rng, dtype, wanted):
    """One query sees nothing but the sink."""
    allowed = rng.random((1, 1, 70, 90)) < 0.6
    allowed[:, :, 5] = False
    x, key = normal(rng, 2, 4, 70, 16, dtype=dtype), normal(rng, 2, 2, 90, 16, dtype=dtype)
    found = judge(rng, x, key, key, mask=allowed, allowed=allowed, sink=normal(rng, 4, dtype=np.float32), wanted=wanted)
    assert found.keys() == {*wanted}


@each_dtype
def test_softcap_bias_alibi_and_masks(rng, dtype):
    x, key = normal(rng, 2, 4, 80, 24, dtype=dtype), normal(rng, 2, 2, 110, 24, dtype=dtype)
    slopes = 2.0 ** -np.asarray([2, 4, 6, 8.0])[:, None, None]
    distance = np.abs(np.arange(80)[:, None] + 30 - np.arange(110))
    alibi = {"bias": mha.alibi(4), "whole_bias": -slopes * distance, "query_offset": 30}
    bias = normal(rng, 2, 1, 80, 110, dtype=np.float32)
    allowed = rng.random((2, 4, 80, 110)) < 0.7
    for options in (
        {"softcap": 0.7},
        alibi,
        {**alibi, "softcap": 3.0, "mask": mha.causal(), "allowed": np.arange(110) <= np.arange(80)[:, None] + 30},
        {"bias": bias, "whole_bias": bias.astype(np.float64), "mask": allowed, "allowed": allowed},
    ):
        judge(rng, x, key, key, **options)


@each_dtype
@pytest.mark.parametrize("scale", [-0.5, 0.0, 1e-46, 30.0])
def test_any_scale(rng, dtype, scale):
    allowed = np.tri(70, dtype=bool)
    judge(rng, *(normal(rng, 1, 1, 70, 16, dtype=dtype) for _ in range(3)), scale=scale, mask=mha.causal(), allowed=allowed)


@pytest.mark.parametrize(("dtype", "size"), [(np.float16, 1e2), (BFLOAT16, 1e4)])
def test_scores_with_large_rounding_errors(rng, dtype, size):
    """lse, rounded, may be less than the largest score by more than 1."""
    query, key = ((rng.normal(size=(1, 2, 70, 64)) * size).astype(dtype) for _ in range(2))
    judge(rng, query, key, normal(rng, 1, 2, 70, 64, dtype=dtype))


def test_arrays_of_any_strides(rng):
    x = normal(rng, 2, 40, 3 * 32)
    heads = x.reshape(2, 40, 3, 32).transpose(0, 2, 1, 3)
    for arrays, pack in (
        ((heads, heads, heads), 8),
        ((heads[..., ::2], heads[:, :, ::-1, ::2], heads[..., ::-1]), 8),
        ((heads[..., 1:], heads[..., 1:], heads), 1),
        ((normal(rng, 2 * 3 * 40 * 16 + 1)[1:].reshape(2, 3, 40, 16), normal(rng, 2, 3, 40, 16), normal(rng, 2, 3, 40, 16)), 1),
    ):
        launched.clear()
        judge(rng, *arrays)
        assert f"PACK={pack}" in launched[1].defines


@each_dtype
def test_keys_that_batch_elements_share_have_sums_in_float32(rng, dtype):
    query, key = normal(rng, 2, 1, 3, 4, 40, 8, dtype=dtype), normal(rng, 1, 2, 3, 2, 70, 8, dtype=dtype)
    value = normal(rng, 2, 2, 1, 2, 70, 8, dtype=dtype)
    launched.clear()
    judge(rng, query, key, value)
    assert {define for launch in launched for define in launch.defines if define.startswith("OUT=")} == {"OUT=float"}
    launched.clear()
    judge(rng, query[:, 0], normal(rng, 2, 3, 2, 70, 8, dtype=dtype), value[:, 0])
    assert [launch.kernel for launch in launched].count("flash_vjp") == 2 * 2 * 3, "a launch for each of two dtypes of sums"


# supports


def call(dtype=np.float16, **shapes):
    given = {"query": (1, 2, 3, 8), "key": (1, 2, 3, 8), "value": (1, 2, 3, 8), "d_lse": (1, 2, 300)} | shapes
    return Call("attention_vjp", tuple(given.items()), np.dtype(dtype), None, options=(("query_offset", 0),))


def test_refusal_reasons(monkeypatch):
    assert flash_vjp.supports(call()) is None and flash_vjp.supports(call(BFLOAT16)) is None
    assert flash_vjp.supports(call(np.float32)) == "supports float16 and bfloat16, not float32"
    assert flash_vjp.supports(call(query=(1, 2, 3, 136))) == "supports head dimensions up to 128, not 136"
    assert flash_vjp.supports(call(value=(1, 2, 3, 200))) == "supports head dimensions up to 128, not 200"
    assert flash_vjp.supports(call(query=(0, 2, 3, 8))) == "does not support empty axes"
    alibi = replace(call(), features=frozenset({"alibi"}), options=(("query_offset", None),))
    assert flash_vjp.supports(alibi) == "supports ALiBi only if query_offset is an int below 536870912"
    monkeypatch.setattr(flash, "capability", lambda: 75)
    assert flash_vjp.supports(call()) == "needs compute capability 8.0, not 7.5"


def test_undeclared_features_are_refused(rng):
    x, d = normal(rng, 1, 2, 3, 8), normal(rng, 1, 2, 3, 8)
    table = normal(rng, 8, 2)
    for options, feature in (
        ({"mask": mha.causal() | mha.prefix(2)}, "mask"),
        ({"bias": mha.relative_bias(table, bidirectional=True, max_distance=9)}, "relative_bias"),
        ({"bias": normal(rng, 3, 3), "wanted": ("bias",)}, "d_bias"),
    ):
        with pytest.raises(mha.KernelUnsupported, match=f"does not handle {feature}"):
            gradients(x, x, x, d, None, **options)


@without_time_limits
@given(st.integers(1, 128), st.integers(1, 128), st.integers(1, 10**6))
def test_a_thread_block_fits_the_smallest_gpu(dim, value_dim, count):
    warps, step = flash_vjp.own_and_step(dim, value_dim, count)
    assert warps == 4 or 16 * warps < 2 * max(count, 16)
    assert step % 16 == 0
    shared = flash_vjp.shared_bytes(dim, value_dim, warps, step)
    assert shared <= 99 << 10, "compute capability 8.6 and 8.9 have the least shared memory of those supported"
