"""The attention kernel ``blocks`` of mha_cupy, with its CUDA run on the host: correct at every border of its blocks.

These tests cover the sources and the Python that launches them. CuPy, cuBLAS and a device need a GPU: see test_cupy_gpu.py.
"""

import sys
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

import mha_core as mha
from cuda_on_host import judging, launched
from cuda_on_host.judging import kernels  # noqa: F401
from cuda_ops import needs_compiler
from mha_core.plugin import Call
from mha_cupy import products
from mha_cupy.attention import blocks, partition

pytestmark = needs_compiler


on_host, drawn, judge = (partial(function, "blocks_on_host") for function in (judging.on_host, judging.drawn, judging.judge))


def normal(rng, *shape, dtype=np.float32):
    return rng.normal(size=shape).astype(dtype)


@pytest.mark.parametrize("num_keys", [1, 31, 32, 33, 128, 129, 1000])
def test_rows_of_every_number_of_threads(rng, num_keys):
    judge(normal(rng, 1, 2, 3, 8), normal(rng, 1, 2, num_keys, 8), normal(rng, 1, 2, num_keys, 5))


@pytest.fixture
def small_blocks(monkeypatch):
    """Blocks of few scores, with at most five keys in a row."""
    for name, value in {"MIN_SCORES": 64, "MAX_SCORES": 64, "MAX_KEYS": 5, "BAND_QUERIES": 4}.items():
        monkeypatch.setattr(partition, name, value)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16])
def test_random_problems_in_small_blocks(rng, dtype):
    for p in drawn(rng, 40, longest=14, copies=3):
        p = p.map(lambda x: x.astype(dtype))
        options = {name: value for name, value in p.options(lambda x: x).items() if value is not None}
        bias = None if p.bias is None else p.bias.astype(np.float64)
        judge(p.query, p.key, p.value, allowed=p.allowed, whole_bias=bias, **options)


@pytest.mark.usefixtures("small_blocks")
def test_poison_changes_no_bit(rng):
    for p in drawn(rng, 40, longest=12):
        clean = on_host(p.query, p.key, p.value, **p.options(lambda x: x))
        poisoned = on_host(p.query, *p.poisoned(), **p.options(lambda x: x))
        for one, other in zip(clean, poisoned, strict=True):
            assert one.tobytes() == other.tobytes()


def test_several_batch_axes_that_broadcast_differently(rng):
    query, key = normal(rng, 2, 1, 3, 4, 6, 8), normal(rng, 1, 2, 3, 2, 7, 8)
    value = normal(rng, 2, 2, 3, 2, 7, 8)
    allowed = rng.random((2, 1, 1, 4, 6, 7)) < 0.7
    bias = normal(rng, 2, 1, 1, 6, 7)
    judge(query, key, value, mask=allowed, bias=bias, allowed=allowed, whole_bias=bias.astype(np.float64))


def test_heads_of_any_strides(rng):
    """Heads split from (b, l, h d), transposed keys, every second element: read in place, or copied."""
    x = normal(rng, 2, 9, 4 * 8)
    heads = x.reshape(2, 9, 4, 8).transpose(0, 2, 1, 3)
    judge(heads, heads, heads)
    turned = np.ascontiguousarray(heads.transpose(0, 1, 3, 2)).transpose(0, 1, 3, 2)
    judge(heads, turned, turned)
    judge(heads[..., ::2], heads[:, :, ::-1, ::2], heads[..., ::-1])


def test_weights_of_many_equal_keys_do_not_underflow_in_float16(rng):
    """Each weight is 1 / 4000; from 16384 equal keys on, a normalized weight would be subnormal in float16."""
    query, key = np.zeros((1, 1, 2, 8), np.float16), normal(rng, 1, 1, 4000, 8, dtype=np.float16)
    launched.clear()
    judge(query, key, normal(rng, 1, 1, 4000, 4, dtype=np.float16))
    (weights,) = (launch.args[1] for launch in launched)
    assert (weights[..., :4000] == np.float16(2**14 / 4000)).all()


def test_a_window_and_alibi_at_an_offset(rng):
    q, k = np.arange(6)[:, None] + 5, np.arange(11)[None, :]
    query, key = normal(rng, 1, 4, 6, 8), normal(rng, 1, 2, 11, 8)
    slopes = 2.0 ** -np.asarray([2, 4, 6, 8.0])
    judge(
        query, key, key, mask=mha.window(3, 0), bias=mha.alibi(4), query_offset=5,
        allowed=(k <= q) & (k >= q - 3), whole_bias=-slopes[:, None, None] * np.abs(q - k),
    )  # fmt: skip


@pytest.mark.parametrize("bias", [None, mha.alibi(2)])
def test_positions_beyond_32_bits(rng, bias):
    offset = 2**31 + 5
    x = normal(rng, 1, 2, 3, 8)
    slopes = 2.0 ** -np.asarray([4, 8.0])[:, None, None]
    whole = None if bias is None else -slopes * (offset + np.arange(3.0)[:, None] - np.arange(3))
    judge(x, x, x, bias=bias, query_offset=offset, whole_bias=whole)


def test_few_scores_outside_a_band_are_computed(rng, small_blocks):
    x = normal(rng, 1, 1, 64, 8)
    launched.clear()
    judge(x, x, x, mask=mha.window(3, 0), allowed=np.tri(64, dtype=bool) & ~np.tri(64, k=-4, dtype=bool))
    assert sum(launch.args[0].size for launch in launched) < 64 * 64 / 4


# supports


def call(**shapes):
    return Call("attention", tuple(shapes.items()), np.dtype("float32"), None)


def test_refusal_reasons():
    fits = call(query=(1, 2, 3, 4), key=(1, 2, 3, 4), value=(1, 2, 3, 4))
    assert blocks.supports(fits) is None
    assert blocks.supports(replace(fits, shapes=(("query", (0, 2)),))) == "does not support empty axes"
    assert blocks.supports(replace(fits, shapes=(("query", (1 << 30, 2)),))) == "supports axes up to 1073741823, not 1073741824"


def test_a_missing_cublas_function_is_named(monkeypatch):
    monkeypatch.undo()  # remove the stand-in
    fits = call(query=(1, 1, 1, 1))
    monkeypatch.setattr(products, "library", lambda: type(sys)("cublas"))
    assert blocks.supports(fits) == "needs cupy_backends.cuda.libs.cublas.gemmStridedBatchedEx, which this CuPy lacks"

    def library():
        raise ImportError("libcublas.so.13: no such file\nlooked in many places")

    monkeypatch.setattr(products, "library", library)
    assert blocks.supports(fits) == "needs cuBLAS: libcublas.so.13: no such file"
