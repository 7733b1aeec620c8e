"""Gradients of attention by the kernel ``blocks`` of mha_cupy, with its CUDA run on the host: right at borders of blocks."""

from functools import partial

import numpy as np
import pytest

import mha_core as mha
from cuda_on_host import judging, launched, plugin
from cuda_on_host.judging import kernels  # noqa: F401
from cuda_ops import needs_compiler
from mha_core.conformance.oracle.attention_gradients import by_bucket, summed_to
from mha_core.dispatch.contract import Call
from mha_cupy import products
from mha_cupy.attention import blocks_vjp, partition

pytestmark = needs_compiler
judge = partial(judging.judge_gradients, "blocks_on_host")
every_gradient = ("query", "key", "value", "bias")


def normal(rng, *shape, dtype=np.float32):
    return rng.normal(size=shape).astype(dtype)


@pytest.fixture
def small_blocks(monkeypatch):
    """Blocks of few scores, with at most five keys in a row."""
    for name, value in {"MIN_SCORES": 64, "MAX_SCORES": 64, "MAX_KEYS": 5, "BAND_QUERIES": 4}.items():
        monkeypatch.setattr(partition, name, value)


@pytest.mark.parametrize("num_keys", [1, 31, 32, 33, 257, 1000])
def test_rows_of_any_length(rng, num_keys):
    judge(rng, normal(rng, 1, 2, 3, 8), normal(rng, 1, 2, num_keys, 8), normal(rng, 1, 2, num_keys, 5))


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16])
def test_many_blocks_add_to_every_gradient(rng, dtype):
    """Grouped queries, a band, softcap, a sink, and a bias that is shared along each axis in turn."""
    query, key = normal(rng, 2, 4, 13, 8, dtype=dtype), normal(rng, 2, 2, 17, 8, dtype=dtype)
    value, wide = normal(rng, 2, 2, 17, 5, dtype=dtype), np.float64 if dtype == np.float64 else np.float32
    for axes in ((2, 4, 13, 17), (13, 17), (4, 1, 1), (2, 1, 13, 1), (1, 17)):
        bias = normal(rng, *axes, dtype=wide)
        launched.clear()
        judge(
            rng, query, key, value, bias=bias, whole_bias=bias.astype(np.float64), softcap=2.0, sink=normal(rng, 4, dtype=wide),
            of_bias=lambda d, shape=axes: summed_to(d, shape), wanted=(*every_gradient, "sink"),
            mask=mha.window(9, 3), query_offset=0, allowed=np.abs(np.arange(17) - np.arange(13)[:, None] + 3) <= 6,
        )  # fmt: skip
    assert sum(launch.kernel == "softmax_vjp" for launch in launched) > 10, "one block has it all"


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("bidirectional", [False, True])
def test_a_table_of_relative_biases_is_summed_over_blocks(rng, bidirectional):
    """Also where keys out of a band's reach were dropped, and with queries that begin at another position."""
    x, key, table = normal(rng, 2, 4, 13, 8), normal(rng, 2, 2, 30, 8), normal(rng, 8, 4)
    bias = mha.relative_bias(table, bidirectional=bidirectional, max_distance=9)
    for offset, options in ((0, {}), (7, {}), (7, {"mask": mha.window(2, 4)})):
        distance = np.arange(30) - np.arange(13)[:, None] - offset
        buckets = np.asarray([[bias.bucket(int(d)) for d in row] for row in np.clip(distance, -9, 9)])
        allowed = (distance >= -2) & (distance <= 4) if options else None
        state = partial(judging.gradients_on_host, "blocks_on_host", x, key, key, wanted=every_gradient, bias=bias)
        d_out, d_lse = normal(rng, *x.shape), normal(rng, *x.shape[:-1])
        found = state(d_out, d_lse, query_offset=offset, **options)["bias"].table
        exact, bound = judging.attention_gradients(
            *(y.astype(np.float64) for y in (x, key, key, d_out, d_lse)), dtype="float32", allowed=allowed,
            bias=np.moveaxis(table[buckets], -1, 0).astype(np.float64),
            of_bias=lambda d, buckets=buckets: by_bucket(d, buckets, table.shape),
        )["bias"]  # fmt: skip
        judging.assert_within("d_table", found, exact, bound)


@pytest.mark.usefixtures("small_blocks")
def test_batch_axes_that_broadcast_differently(rng):
    query, key, value = normal(rng, 2, 1, 3, 4, 6, 8), normal(rng, 1, 2, 3, 2, 7, 8), normal(rng, 2, 2, 1, 2, 7, 8)
    allowed, bias = rng.random((2, 1, 1, 4, 6, 7)) < 0.7, normal(rng, 2, 1, 1, 6, 7)
    judge(
        rng, query, key, value, mask=allowed, allowed=allowed, bias=bias, whole_bias=bias.astype(np.float64),
        of_bias=lambda d: summed_to(d, bias.shape), wanted=every_gradient,
    )  # fmt: skip


def test_heads_of_any_strides(rng):
    heads = normal(rng, 2, 9, 4 * 8).reshape(2, 9, 4, 8).transpose(0, 2, 1, 3)
    judge(rng, heads, heads, heads)
    turned = np.ascontiguousarray(heads.transpose(0, 1, 3, 2)).transpose(0, 1, 3, 2)
    judge(rng, heads, turned, turned)
    judge(rng, heads[..., ::2], heads[:, :, ::-1, ::2], heads[..., ::-1])


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_few_launches_and_products(rng, dtype, monkeypatch):
    """One kernel for rows, one between the products, and five products, whatever the options."""
    blas = plugin.HostBlas()
    monkeypatch.setattr(products, "_cublas", lambda: (blas, 0))
    x = normal(rng, 2, 3, 40, 16, dtype=dtype)
    launched.clear()
    judging.gradients_on_host("blocks_on_host", x, x, x, x, None, mask=mha.causal(), softcap=2.0)
    assert [launch.kernel for launch in launched] == ["row_terms", "softmax_vjp"]
    assert blas.calls == 5


def test_few_scores_outside_a_band_are_computed(rng, small_blocks):
    x = normal(rng, 1, 1, 64, 8)
    launched.clear()
    allowed = np.tri(64, dtype=bool) & ~np.tri(64, k=-4, dtype=bool)
    judge(rng, x, x, x, mask=mha.window(3, 0), allowed=allowed)
    assert sum(launch.args[0].size for launch in launched if launch.kernel == "softmax_vjp") < 2 * 64 * 64 / 4


def test_small_gradients_of_many_keys_are_not_lost_in_float16(rng):
    """Each weight is 1 / 4000, which is rounded times 2^14; the gradient of a value is as small, but normal."""
    query, key = np.zeros((1, 1, 2, 8), np.float16), normal(rng, 1, 1, 4000, 8, dtype=np.float16)
    launched.clear()
    judge(rng, query, key, normal(rng, 1, 1, 4000, 4, dtype=np.float16))
    weights = next(launch.args[2] for launch in launched if launch.kernel == "softmax_vjp")
    np.testing.assert_allclose(weights[..., :4000].astype(float), 2**14 / 4000, rtol=2e-3)


def test_refusal_reasons(monkeypatch):
    shapes = (("query", (1, 2, 3, 4)), ("key", (1, 2, 3, 4)), ("value", (1, 2, 3, 4)))

    def reason(*features, shapes=shapes, offset=0):
        return blocks_vjp.supports(
            Call("attention_vjp", shapes, np.dtype("float32"), None, frozenset(features), (("query_offset", offset),))
        )

    assert reason() is None and reason("bias_term") is None and reason("d_bias", "relative_bias") is None
    assert reason("bias_term", "d_bias") == "has no rule for the gradient of a bias of the caller's class"
    assert reason("relative_bias", "d_bias", offset=None) == (
        "does not support the gradient of a relative bias with an offset for each batch element"
    )
    assert reason(shapes=(("query", (0, 2)),)) == "does not support empty axes"
    monkeypatch.setattr(products, "missing", lambda: "needs cuBLAS")
    assert reason() == "needs cuBLAS"
