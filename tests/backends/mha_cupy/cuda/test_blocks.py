"""The kernel ``blocks`` alone, forwards and backwards: correct at every border of its blocks, in few launches and products."""

import sys
from functools import partial

import numpy as np
import pytest
from cuda_kernels import needs_compiler
from cuda_on_host import judging, launched, plugin

import mha_core as mha
from mha_conformance.oracle.attention_gradients import by_bucket, summed_to
from mha_cupy import products
from mha_cupy.attention import partition

pytestmark = needs_compiler
each_dtype = pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16])
judge, judge_gradients = (partial(function, "blocks_on_host") for function in (judging.judge, judging.judge_gradients))
every_gradient = ("query", "key", "value", "bias")


@pytest.fixture
def small_blocks(monkeypatch):
    """Blocks of few scores, with at most five keys in a row."""
    for name, value in {"MIN_SCORES": 64, "MAX_SCORES": 64, "MAX_KEYS": 5, "BAND_QUERIES": 4}.items():
        monkeypatch.setattr(partition, name, value)


@pytest.mark.parametrize("num_keys", [1, 33, 1000])
def test_rows_of_every_number_of_threads(rng, normal, num_keys):
    arrays = normal(1, 2, 3, 8), normal(1, 2, num_keys, 8), normal(1, 2, num_keys, 5)
    judge(*arrays)
    judge_gradients(rng, *arrays)


@pytest.mark.usefixtures("small_blocks")
@each_dtype
def test_random_problems_in_small_blocks(rng, dtype):
    for p in judging.drawn("blocks_on_host", rng, 40, longest=14, copies=3):
        p = p.map(lambda x: x.astype(dtype))
        options = {name: value for name, value in p.options(lambda x: x).items() if value is not None}
        bias = None if p.bias is None else p.bias.astype(np.float64)
        judge(p.query, p.key, p.value, allowed=p.allowed, whole_bias=bias, **options)


@pytest.mark.usefixtures("small_blocks")
@each_dtype
def test_many_blocks_add_to_every_gradient(rng, normal, dtype):
    """Grouped queries, a band, softcap, a sink, and a bias that is shared along each axis in turn."""
    query, key, value = (normal(2, *shape, dtype=dtype) for shape in ((4, 13, 8), (2, 17, 8), (2, 17, 5)))
    wide = np.float64 if dtype == np.float64 else np.float32
    for axes in ((2, 4, 13, 17), (13, 17), (4, 1, 1), (2, 1, 13, 1), (1, 17)):
        bias = normal(*axes, dtype=wide)
        launched.clear()
        judge_gradients(
            rng, query, key, value, bias=bias, whole_bias=bias.astype(np.float64), softcap=2.0, sink=normal(4, dtype=wide),
            of_bias=lambda d, shape=axes: summed_to(d, shape), wanted=(*every_gradient, "sink"),
            mask=mha.window(9, 3), query_offset=0, allowed=np.abs(np.arange(17) - np.arange(13)[:, None] + 3) <= 6,
        )  # fmt: skip
    assert sum(launch.kernel == "softmax_vjp" for launch in launched) > 10, "one block has it all"


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("bidirectional", [False, True])
def test_a_table_of_relative_biases_is_summed_over_blocks(rng, normal, bidirectional):
    """Also where keys out of a band's reach were dropped, and with queries that begin at another position."""
    x, key, table = normal(2, 4, 13, 8), normal(2, 2, 30, 8), normal(8, 4)
    bias = mha.relative_bias(table, bidirectional=bidirectional, max_distance=9)
    for offset, options in ((0, {}), (7, {}), (7, {"mask": mha.window(2, 4)})):
        distance = np.arange(30) - np.arange(13)[:, None] - offset
        buckets = np.asarray([[bias.bucket(int(d)) for d in row] for row in np.clip(distance, -9, 9)])
        allowed = (distance >= -2) & (distance <= 4) if options else None
        d_out, d_lse = normal(*x.shape), normal(*x.shape[:-1])
        options |= {"wanted": every_gradient, "bias": bias, "query_offset": offset}
        gradient = judging.gradients_on_host("blocks_on_host", x, key, key, d_out, d_lse, **options)["bias"].table
        exact, bound = judging.attention_gradients(
            *(y.astype(np.float64) for y in (x, key, key, d_out, d_lse)), dtype="float32", allowed=allowed,
            bias=np.moveaxis(table[buckets], -1, 0).astype(np.float64),
            of_bias=lambda d, buckets=buckets: by_bucket(d, buckets, table.shape),
        )["bias"]  # fmt: skip
        judging.assert_within("d_table", gradient, exact, bound)


@pytest.mark.usefixtures("small_blocks")
def test_the_gradient_of_a_bias_that_batch_axes_share(rng, normal):
    query, key, value = normal(2, 1, 3, 4, 6, 8), normal(1, 2, 3, 2, 7, 8), normal(2, 2, 1, 2, 7, 8)
    allowed, bias = rng.random((2, 1, 1, 4, 6, 7)) < 0.7, normal(2, 1, 1, 6, 7)
    options = {"mask": allowed, "allowed": allowed, "bias": bias, "whole_bias": bias.astype(np.float64)}
    judge_gradients(rng, query, key, value, of_bias=lambda d: summed_to(d, bias.shape), wanted=every_gradient, **options)


def test_small_weights_of_many_keys_are_not_lost_in_float16(rng):
    """Each weight is 1 / 4000, rounded times 2^14; from 16384 equal keys on, it would be subnormal in float16."""
    query = np.zeros((1, 1, 2, 8), np.float16)
    key, value = (rng.normal(size=(1, 1, 4000, d)).astype(np.float16) for d in (8, 4))
    for check, kernel, argument, rtol in ((judge, "softmax", 1, 0), (partial(judge_gradients, rng), "softmax_vjp", 2, 2e-3)):
        launched.clear()
        check(query, key, value)
        weights = next(launch.args[argument] for launch in launched if launch.kernel == kernel)
        np.testing.assert_allclose(weights[..., :4000].astype(float), np.float16(2**14 / 4000), rtol=rtol)


@pytest.mark.parametrize("bias", [None, mha.alibi(2)])
def test_positions_beyond_32_bits(normal, bias):
    offset, x = 2**31 + 5, normal(1, 2, 3, 8)
    slopes = 2.0 ** -np.asarray([4, 8.0])[:, None, None]
    whole = None if bias is None else -slopes * (offset + np.arange(3.0)[:, None] - np.arange(3))
    judge(x, x, x, bias=bias, query_offset=offset, whole_bias=whole)


@pytest.mark.usefixtures("small_blocks")
def test_few_scores_outside_a_band_are_computed(rng, normal):
    x, options = normal(1, 1, 64, 8), {"mask": mha.window(3, 0)}
    options["allowed"] = np.tri(64, dtype=bool) & ~np.tri(64, k=-4, dtype=bool)
    launched.clear()
    judge(x, x, x, **options)
    assert sum(launch.args[0].size for launch in launched) < 64 * 64 / 4
    launched.clear()
    judge_gradients(rng, x, x, x, **options)
    assert sum(launch.args[0].size for launch in launched if launch.kernel == "softmax_vjp") < 2 * 64 * 64 / 4


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_few_launches_and_products(normal, dtype, monkeypatch):
    """One kernel for rows, one between the products, and five products, whatever the options."""
    blas = plugin.HostBlas()
    monkeypatch.setattr(products, "_cublas", lambda: (blas, 0))
    x = normal(2, 3, 40, 16, dtype=dtype)
    launched.clear()
    judging.gradients_on_host("blocks_on_host", x, x, x, x, None, mask=mha.causal(), softcap=2.0)
    assert [launch.kernel for launch in launched] == ["row_terms", "softmax_vjp"]
    assert blas.calls == 5


def test_a_missing_cublas_function_is_named(monkeypatch):
    monkeypatch.undo()  # remove the stand-in
    monkeypatch.setattr(products, "library", lambda: type(sys)("cublas"))
    assert products.missing() == "needs cupy_backends.cuda.libs.cublas.gemmStridedBatchedEx, which this CuPy lacks"

    def library():
        raise ImportError("libcublas.so.13: no such file\nlooked in many places")

    monkeypatch.setattr(products, "library", library)
    assert products.missing() == "needs cuBLAS: libcublas.so.13: no such file"
