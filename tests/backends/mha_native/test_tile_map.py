"""Masks of any kind in the compiled kernel: maps of tiles, with a bit for each pair in doubt."""

import numpy as np
import pytest
import torch
from native import LEVELS, needs_native

import mha_core as mha
from mha_core.ops.attend import prepare
from mha_core.plugin import Call

pytestmark = [needs_native, pytest.mark.usefixtures("native")]
IDS = np.random.default_rng(3).integers(0, 5, 800)
MASKS = {
    "causal": lambda b, h, q, k: q >= k,
    "by head": lambda b, h, q, k: (q - k) % (h + 2) == 0,
    "by batch": lambda b, h, q, k: (q + b) % 3 >= k % 2,
    "documents": lambda b, h, q, k: (IDS[q] == IDS[k]) & (q >= k),
    "few": lambda b, h, q, k: (q == 7) | (k == 70 + h),
}
SHAPES = [(2, 4, 2, 100, 100, 16, 0), (1, 3, 3, 130, 200, 8, 5), (2, 4, 1, 3, 150, 16, 147), (1, 2, 2, 1, 300, 64, 299)]
"""Batch, heads, key heads, queries, keys, width and query_offset; the last two are computed by another part of the kernel."""


def problem(shape, dtype):
    batch, heads, key_heads, queries, keys, width, _ = shape
    rng = np.random.default_rng(sum(shape))
    sizes = ((heads, queries), (key_heads, keys), (key_heads, keys))
    return [rng.standard_normal((batch, *size, width)).astype(dtype) for size in sizes]


def masks(function, shape):
    batch, heads, _, queries, keys, _, offset = shape
    mapped = mha.block_mask(function, queries, keys, batch_shape=(batch,), num_heads=heads, query_offset=offset)
    plain = mha.mask_function(function)
    return [plain, mapped, mha.causal() & plain, mha.window(30, 0) & mapped, mha.prefix(90) & plain, mapped | mha.prefix(70)]


@pytest.fixture(params=LEVELS)
def level(request, native):
    """The level of the compiled module."""
    native.use_level(request.param)
    yield request.param
    native.use_level(None)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", MASKS)
def test_every_mask_is_that_of_the_algebra(level, name, shape):
    for at, mask in enumerate(masks(MASKS[name], shape)):
        states = {}
        for kernel in ("native", "algebra"):
            with mha.use_kernel("attention", kernel):
                states[kernel] = mha.attention_state(*problem(shape, np.float64), mask=mask, query_offset=shape[-1])
        assert np.allclose(states["native"].out, states["algebra"].out, atol=1e-12), at
        assert np.allclose(states["native"].lse, states["algebra"].lse, atol=1e-12), at


@pytest.mark.parametrize("name", MASKS)
def test_gradients_are_those_of_the_algebra(level, name):
    shape = SHAPES[0]
    for at, mask in enumerate(masks(MASKS[name], shape)):
        gradients = []
        for kernel in ("native", "algebra"):
            with mha.use_kernel("attention_vjp", kernel):
                arrays = problem(shape, np.float64)
                out, pullback = mha.vjp(lambda *x, mask=mask: mha.scaled_dot_product_attention(*x, mask=mask), *arrays)
                gradients.append(pullback(np.cos(np.arange(out.size)).reshape(out.shape)))
        for actual, expected in zip(*gradients, strict=True):
            assert np.allclose(actual, expected, atol=1e-12), at


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_torch_and_other_dtypes(dtype):
    shape = (2, 4, 2, 200, 200, 16, 0)
    arrays = [torch.asarray(x).to(dtype) for x in problem(shape, np.float32)]
    mask = mha.block_mask(lambda b, h, q, k: (q >= k) & ((q - k) % 3 != h % 3), 200, 200, num_heads=4, backend="torch")
    assert "native" in str(mha.explain(mha.scaled_dot_product_attention, *arrays, mask=mask)).splitlines()[0]
    expected = mha.scaled_dot_product_attention(*(x.double() for x in arrays), mask=mask)
    actual = mha.scaled_dot_product_attention(*arrays, mask=mask)
    assert torch.allclose(actual.double(), expected, atol={torch.float32: 1e-5}.get(dtype, 2e-2))


def test_hidden_keys_may_hold_anything():
    query, key, value = problem((1, 2, 2, 150, 150, 8, 0), np.float64)
    mask = mha.block_mask(lambda b, h, q, k: (k != 9) & (q >= k), 150, 150)
    expected = mha.scaled_dot_product_attention(query, key, value, mask=mask)
    key[:, :, 9] = value[:, :, 9] = np.nan
    assert np.array_equal(mha.scaled_dot_product_attention(query, key, value, mask=mask), expected)


def test_the_map_of_a_block_mask_is_made_once():
    calls = []

    def counted(b, h, q, k):
        calls.append(1)
        return q >= k

    arrays = problem((1, 2, 2, 300, 300, 8, 0), np.float32)
    mask = mha.block_mask(counted, 300, 300)
    first = mha.scaled_dot_product_attention(*arrays, mask=mask)
    calls.clear()
    assert np.array_equal(mha.scaled_dot_product_attention(*arrays, mask=mask), first)
    assert not calls


def test_a_map_has_words_for_the_tiles_in_doubt_alone():
    query, key, value = problem((1, 2, 2, 300, 300, 8, 0), np.float32)
    mask = mha.mask_function(lambda b, h, q, k: q >= k)
    from mha_native.tile_map import tile_map

    _, p = prepare(query, key, value, mask=mask)
    made = tile_map(p, lambda x: x)
    assert made.tiles.shape[-2:] == (5, 5)
    assert made.words.shape == (5, 64)
    lower = np.tril(np.full((5, 5), True), -1)
    assert (made.tiles[lower] == 1).all() and (made.tiles[lower.T] == 0).all()
    assert made.words[0].tolist() == [(1 << row + 1) - 1 for row in range(64)]


def test_a_map_that_names_missing_words_is_refused(native):
    plan = native.plan("f", (), 1, 1, 65, 65, 4, 4, 0.5, 0.0, None, None, 0)
    x, out = np.ones((1, 65, 4), np.float32), np.ones((1, 65, 4), np.float32)
    nothing = [None] * 7
    words = np.ones((1, 64), np.uint64)
    for tiles in (np.full((1, 2, 2), 3, np.int32), np.full((1, 2, 2), -1, np.int32)):
        with pytest.raises(ValueError, match="is not among 1 words"):
            native.attend(plan, 1, x, x, x, out, *nothing, tiles, words)
    with pytest.raises(ValueError, match="tiles has an axis of length 3; expected 2"):
        native.attend(plan, 1, x, x, x, out, *nothing, np.zeros((1, 3, 2), np.int32), words)
    with pytest.raises(TypeError, match="tiles has 3 axes of format l"):
        native.attend(plan, 1, x, x, x, out, *nothing, np.zeros((1, 2, 2), np.int64), words)


def test_bits_are_kept_for_so_many_pairs_only():
    from mha_native import on_numpy

    def reason(length, *features):
        shapes = tuple((name, (1, 1, length, 4)) for name in ("query", "key", "value"))
        return on_numpy.supports(Call("attention", shapes, np.dtype("float32"), None, frozenset(features)))

    assert reason(2**15, "mask") is reason(2**16, "causal") is None
    assert reason(2**16, "mask") == "keeps a bit for each pair of such a mask, and there are more than 2147483648 pairs"
