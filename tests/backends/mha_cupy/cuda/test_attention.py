"""Attention and its gradients by the kernels ``flash`` and ``blocks``: correct at every border of blocks, steps and splits.

The problems of test_conformance.py are small; these span several thread blocks and steps. Tensor cores are emulated as the PTX
ISA defines them; a device's own rounding is not tested. CuPy, cuBLAS and a device need a GPU: see ../test_gpu.py.
"""

from functools import partial

import numpy as np
import pytest
from cuda_kernels import DTYPES, needs_compiler
from cuda_on_host import judging, launched

import mha_core as mha
from mha_core.dispatch.contract import Call
from mha_cupy import products
from mha_cupy.attention import blocks, blocks_vjp, flash, flash_vjp

pytestmark = needs_compiler
KERNELS = {"flash float16": ("flash", "float16"), "flash bfloat16": ("flash", "bfloat16"), "blocks": ("blocks", "float32")}
SIZES = [1, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 257]


@pytest.fixture(params=KERNELS)
def kernel(request):
    """The name of a kernel, for both operations."""
    return f"{KERNELS[request.param][0]}_on_host"


@pytest.fixture
def normal(request, kernel, rng):
    """Return a function that draws arrays in a dtype of the kernel."""
    _, dtype = KERNELS[request.node.callspec.params["kernel"]]
    return lambda *shape, dtype=DTYPES[dtype]: rng.normal(size=shape).astype(dtype)


@pytest.fixture(params=["attention", "gradients"])
def judge(request, kernel, rng):
    """Return a function that checks a call of one operation against the oracle."""
    return partial(judging.judge, kernel) if request.param == "attention" else partial(judging.judge_gradients, kernel, rng)


@pytest.mark.parametrize(
    "shape", [(1, 1, 1, 150, 140, 16, 24), (2, 2, 3, 50, 130, 64, 64), (1, 2, 1, 70, 100, 128, 72), (1, 1, 2, 9, 300, 5, 7)]
)
def test_several_blocks_and_steps(judge, normal, shape):
    """(batch, key heads, groups, queries, keys, head_dim, value_dim)."""
    batch, heads, groups, rows, cols, dim, value_dim = shape
    judge(normal(batch, heads * groups, rows, dim), normal(batch, heads, cols, dim), normal(batch, heads, cols, value_dim))


@pytest.mark.parametrize("size", SIZES)
def test_queries_and_keys_that_end_anywhere(judge, normal, monkeypatch, size):
    monkeypatch.setattr(flash, "multiprocessors", lambda: 0)  # keys are not split
    judge(normal(1, 2, 5, 16), normal(1, 2, size, 16), normal(1, 2, size, 5))
    judge(normal(1, 1, size, 16), normal(1, 1, 70, 16), normal(1, 1, 70, 16))


@pytest.mark.parametrize("window", [(None, 0), (0, None), (3, 0), (40, 10), (64, 64)])
@pytest.mark.parametrize("offset", [0, 37, -60])
def test_bands_across_blocks(judge, normal, monkeypatch, window, offset):
    monkeypatch.setattr(flash, "multiprocessors", lambda: 0)
    before, after = window
    key, distance = normal(1, 1, 180, 16), np.arange(180) - np.arange(140)[:, None] - offset
    allowed = (distance >= (-np.inf if before is None else -before)) & (distance <= (np.inf if after is None else after))
    judge(normal(1, 2, 140, 16), key, key, mask=mha.window(before, after), query_offset=offset, allowed=allowed)


@pytest.mark.parametrize("lengths", [(5, 60, 0, 75, 1), (140,), (64, 64, 12), (1,) * 140])
@pytest.mark.parametrize("causal", [False, True])
def test_packed_sequences(kernel, judge, normal, lengths, causal):
    """The kernel ``flash`` needs one launch for all sequences, or three for gradients."""
    if kernel == "blocks_on_host" and len(lengths) > 100:
        pytest.skip("a launch for each sequence")
    x, ids, at = normal(2, 2, sum(lengths), 16), np.repeat(np.arange(len(lengths)), lengths), np.arange(sum(lengths))
    allowed, mask, alibi = ids[:, None] == ids, mha.packed(lengths), mha.alibi(2)
    if causal:
        mask, allowed = mask & mha.causal(), allowed & np.tri(len(ids), dtype=bool)
    for options in ({}, {"bias": alibi, "whole_bias": -np.asarray([2.0**-4, 2.0**-8])[:, None, None] * abs(at - at[:, None])}):
        launched.clear()
        judge(x, x, x, mask=mask, allowed=allowed, **options)
        assert kernel == "blocks_on_host" or len(launched) == (1 if judge.func is judging.judge else 2 * 3)


def test_softcap_biases_alibi_and_masks(judge, normal, rng):
    """A bias may have a wider dtype. One query sees nothing."""
    x, key = normal(2, 4, 80, 24), normal(2, 2, 110, 24)
    slopes = 2.0 ** -np.asarray([2, 4, 6, 8.0])[:, None, None]
    distance = np.arange(80)[:, None] + 30 - np.arange(110)
    alibi = {"bias": mha.alibi(4), "whole_bias": -slopes * np.abs(distance), "query_offset": 30}
    bias = normal(2, 1, 80, 110, dtype=np.float32)
    allowed = rng.random((2, 4, 80, 110)) < 0.7
    allowed[..., 5, :] = False
    for options in (
        {"softcap": 0.7},
        alibi,
        {**alibi, "softcap": 3.0, "mask": mha.causal(), "allowed": distance >= 0},
        {**alibi, "mask": mha.window(3, 0), "allowed": (distance >= 0) & (distance <= 3)},
        {"bias": bias, "whole_bias": bias.astype(np.float64), "mask": allowed, "allowed": allowed},
        {"mask": allowed, "allowed": allowed, "sink": normal(8, dtype=np.float32)[::2]},
    ):
        judge(x, key, key, **options)


@pytest.mark.parametrize("scale", [-0.5, 0.0, 1e-46, 30.0])
def test_any_scale(judge, normal, scale):
    """Large scores, scores that grow as products fall, and scores that are all 0."""
    judge(*(normal(1, 1, 70, 16) for _ in range(3)), scale=scale, mask=mha.causal(), allowed=np.tri(70, dtype=bool))


@pytest.mark.parametrize("size", [1e2, 1e4, 1e8])
def test_scores_with_large_rounding_errors(judge, normal, size):
    """lse, rounded, may be less than the largest score by more than 1."""
    query, key, value = (normal(1, 2, 70, 64) for _ in range(3))
    largest = {"float16": 1e4, "float32": 1e4}.get(query.dtype.name, 1e8)
    if size > largest or (query.dtype == np.float16 and judge.func is judging.judge_gradients and size > 1e2):
        pytest.skip("scores or gradients overflow")
    judge((query * size).astype(query.dtype), (key * size).astype(key.dtype), value)


def test_heads_of_any_strides(kernel, judge, normal):
    """Heads split from (b, l, h d), every second element, transposed, broadcast, not aligned: read in place, or copied."""
    heads = normal(2, 40, 3 * 32).reshape(2, 40, 3, 32).transpose(0, 2, 1, 3)
    turned = np.ascontiguousarray(heads.swapaxes(-1, -2)).swapaxes(-1, -2)
    apart, shifted, whole = (
        normal(2, 3, 40, 20)[..., :16],
        normal(2 * 3 * 40 * 16 + 1)[1:].reshape(2, 3, 40, 16),
        heads[..., :16],
    )
    for pack, arrays in (
        (8, (heads, heads, heads)),
        (8, (heads, turned, turned)),
        (8, (heads[..., ::2], heads[:, :, ::-1, ::2], heads[..., ::-1])),
        (8, (heads, np.broadcast_to(heads[:1], heads.shape), heads[:1])),
        (1, (heads[..., 1:], heads[..., 1:], heads)),
        (1, (apart, whole, whole)),
        (1, (whole, whole, apart)),
        (1, (whole, shifted, whole)),
    ):
        launched.clear()
        judge(*arrays)
        packs = {define for launch in launched for define in launch.defines if launch.kernel in ("flash", "flash_vjp")}
        assert kernel == "blocks_on_host" or f"PACK={pack}" in packs


def test_batch_axes_that_broadcast_differently(judge, normal, rng):
    """The key, or the value, is shared by batch elements: gradients of it are sums in float32."""
    query, key, value = normal(2, 1, 3, 4, 6, 8), normal(1, 2, 3, 2, 70, 8), normal(2, 2, 1, 2, 70, 8)
    allowed, bias = rng.random((2, 1, 1, 4, 6, 70)) < 0.7, normal(2, 1, 1, 6, 70)
    options = {"mask": allowed, "allowed": allowed, "bias": bias, "whole_bias": bias.astype(np.float64)}
    launched.clear()
    judge(query, key, value, **options)
    sums = {define for launch in launched if launch.kernel == "flash_vjp" for define in launch.defines if define[:4] == "OUT="}
    assert sums <= {"OUT=float"}
    launched.clear()
    judge(query[:, 0], normal(2, 3, 2, 70, 8), value[:, 0])
    by_flash = [launch.kernel for launch in launched].count("flash_vjp")
    assert by_flash in (0, 2 * 2 * 3), "a launch for each of two dtypes of sums"


@pytest.mark.parametrize("kernel", ["flash float16", "blocks"], indirect=True)
def test_poison_changes_no_bit(kernel, rng):
    shapes = {"shapes": ((2, 1, 3, 50, 130, 64, 64),), "depth": 1} if kernel == "flash_on_host" else {"longest": 12}
    for p in judging.drawn(kernel, rng, 20, dtype=np.float16 if kernel == "flash_on_host" else None, **shapes):
        clean = judging.on_host(kernel, p.query, p.key, p.value, **p.options(lambda x: x))
        poisoned = judging.on_host(kernel, p.query, *p.poisoned(), **p.options(lambda x: x))
        assert [x.tobytes() for x in clean] == [x.tobytes() for x in poisoned]


def test_out_has_the_query_s_order_of_heads(kernel, normal):
    heads = normal(2, 20, 6 * 16).reshape(2, 20, 6, 16).swapaxes(1, 2)
    out = judging.judge(kernel, heads, heads[:, :2], heads[:, :2]).out
    assert out.strides == heads.strides
    assert judging.judge(kernel, heads.copy(), heads[:, :2], heads[:, :2]).out.flags.c_contiguous


@pytest.mark.parametrize("wanted", [("query", "key", "value"), ("sink",), ("query", "sink"), ("value",), ("key",)])
def test_each_gradient_alone(kernel, normal, rng, wanted):
    """One query sees nothing but the sink."""
    allowed = rng.random((1, 1, 70, 90)) < 0.6
    allowed[:, :, 5] = False
    key, sink = normal(2, 2, 90, 16), normal(4, dtype=np.float32)
    options = {"mask": allowed, "allowed": allowed, "sink": sink, "wanted": wanted}
    assert judging.judge_gradients(kernel, rng, normal(2, 4, 70, 16), key, key, **options).keys() == {*wanted}


def test_what_nobody_sees_has_gradients_of_0(kernel, normal, rng):
    """Keys beyond a length, and queries without keys, whatever they hold."""
    query, key, value = normal(3, 2, 90, 16), normal(3, 1, 130, 16), normal(3, 1, 130, 16)
    lengths = np.asarray([0, 70, 130])
    options = {"mask": mha.key_lengths(lengths)}
    allowed = (np.arange(130) < lengths[:, None])[:, None, None, :]
    gradients = judging.judge_gradients(kernel, rng, query, key, value, allowed=allowed, **options)
    assert not gradients["query"][0].any() and not gradients["key"][1, :, 70:].any() and not gradients["value"][0].any()
    d_out, d_lse = normal(3, 2, 90, 16), normal(3, 2, 90, dtype=np.float32)
    clean = judging.gradients_on_host(kernel, query, key, value, d_out, d_lse, **options)
    for x in (key, value):
        x[1, 0, 70:], x[0] = np.nan, np.inf
    d_out[0], d_lse[0] = np.nan, np.nan
    poisoned = judging.gradients_on_host(kernel, query, key, value, d_out, d_lse, **options)
    assert {name: x.tobytes() for name, x in poisoned.items()} == {name: x.tobytes() for name, x in clean.items()}


# supports

FITS = dict.fromkeys(("query", "key", "value"), (1, 2, 3, 8))
HALF, EMPTY = "supports float16 and bfloat16, not float32", "does not support empty axes"
FAR_ALIBI = "supports ALiBi only if query_offset is an int below 536870912"
MANY = {"query": (2**16, 2, 1, 8), "key": (1, 2, 3, 8), "value": (2**14, 1, 2, 3, 8)}
REFUSALS = [
    (flash, {"sink": (300,)}, {}, None),
    (flash, {}, {"dtype": DTYPES["bfloat16"]}, None),
    (flash, {}, {"dtype": "float32"}, HALF),
    (flash, {"query": (1, 2, 3, 264)}, {}, "supports head dimensions up to 256, not 264"),
    (flash, {"value": (1, 2, 3, 300)}, {}, "supports head dimensions up to 256, not 300"),
    (flash, {"query": (0, 2, 3, 8)}, {}, EMPTY),
    (flash, MANY, {}, "supports up to 2147482624 queries over all heads, not 2147483648"),
    (flash, {}, {"features": {"alibi"}}, None),
    *((flash, {}, {"features": {"alibi"}, "offset": offset}, FAR_ALIBI) for offset in (None, 2**29, -(2**29))),
    (flash_vjp, {"d_lse": (1, 2, 300)}, {}, None),
    (flash_vjp, {}, {"dtype": "float32"}, HALF),
    (flash_vjp, {"query": (1, 2, 3, 136)}, {}, "supports head dimensions up to 128, not 136"),
    (flash_vjp, {"value": (1, 2, 3, 200)}, {}, "supports head dimensions up to 128, not 200"),
    (flash_vjp, {"query": (0, 2, 3, 8)}, {}, EMPTY),
    (flash_vjp, {}, {"features": {"alibi"}, "offset": None}, FAR_ALIBI),
    (blocks, {}, {}, None),
    (blocks, {"query": (0, 2)}, {}, EMPTY),
    (blocks, {"query": (1 << 30, 2)}, {}, "supports axes up to 1073741823, not 1073741824"),
    (blocks_vjp, {}, {"features": {"bias_term"}}, None),
    (blocks_vjp, {}, {"features": {"d_bias", "relative_bias"}}, None),
    (blocks_vjp, {"query": (0, 2)}, {}, EMPTY),
    (
        *(blocks_vjp, {}, {"features": {"bias_term", "d_bias"}}),
        "has no rule for the gradient of a bias of the caller's class",
    ),
    (
        *(blocks_vjp, {}, {"features": {"relative_bias", "d_bias"}, "offset": None}),
        "does not support the gradient of a relative bias with an offset for each batch element",
    ),
]


def call(shapes, *, dtype="float16", features=(), offset=0):
    return Call("", tuple((FITS | shapes).items()), np.dtype(dtype), None, frozenset(features), (("query_offset", offset),))


@pytest.mark.parametrize(("module", "shapes", "options", "reason"), REFUSALS)
def test_refusal_reasons(module, shapes, options, reason):
    assert module.supports(call(shapes, **options)) == reason


def test_a_device_or_library_that_is_too_old_is_refused(monkeypatch):
    monkeypatch.setattr(flash, "capability", lambda: 75)
    monkeypatch.setattr(products, "missing", lambda: "needs cuBLAS")
    for module in (flash, flash_vjp):
        assert module.supports(call({})) == "needs compute capability 8.0, not 7.5"
    for module in (blocks, blocks_vjp):
        assert module.supports(call({}, dtype="float32")) == "needs cuBLAS"
