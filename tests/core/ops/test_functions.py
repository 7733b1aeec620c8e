"""Masks and scores as functions, block masks, and functions of torch's FlexAttention."""

from functools import partial

import numpy as np
import pytest

import mha_core as mha
from mha_core.plugin import BLOCK


def lower(batch, head, query, key):
    return query >= key


@pytest.mark.parametrize(
    ("mask", "query_offset"),
    [
        (mha.causal(), 0),
        (mha.window(70, 10), 3),
        (mha.causal() | mha.prefix(100), -5),
        (mha.mask_function(lambda b, h, q, k: (q - k) % 3 == 0), 0),
        (~mha.mask_function(lower) & mha.chunks(90), 1),
    ],
)
def test_a_block_mask_is_the_same_mask(mask, query_offset):
    query, key, value = (np.random.default_rng(1).standard_normal((2, 3, n, 8)) for n in (150, 200, 200))
    attend = partial(mha.attention_state, query, key, value, query_offset=query_offset)
    mapped = mha.block_mask(mask, 150, 200, query_offset=query_offset)
    for expected, actual in zip(attend(mask=mask), attend(mask=mapped), strict=True):
        assert np.allclose(actual, expected, atol=1e-12)
    assert sum(mapped.counts.values()) == 3 * 4
    elsewhere = mha.scaled_dot_product_attention(query, key, value, mask=mapped, query_offset=9)
    assert np.allclose(elsewhere, mha.scaled_dot_product_attention(query, key, value, mask=mask, query_offset=9), atol=1e-12)


def test_a_map_counts_its_tiles_and_a_function_is_not_called_where_it_is_known():
    called = []

    def counted(batch, head, query, key):
        called.append((query.min() // BLOCK, query.max() // BLOCK, key.min() // BLOCK, key.max() // BLOCK))
        return query >= key

    n = 8 * BLOCK
    mask = mha.block_mask(counted, n, n)
    assert mask.counts == {"none": 28, "some": 8, "all": 28}
    called.clear()
    x = np.random.default_rng(0).standard_normal((1, n, 16))
    out = mha.scaled_dot_product_attention(x, x, x, mask=mask)
    assert np.allclose(out, mha.scaled_dot_product_attention(x, x, x, mask=mha.causal()), atol=1e-12)
    # neighbouring tiles may be evaluated together, but none that is far from the diagonal
    assert called and all(abs(a - c) <= 1 and abs(b - d) <= 1 and b - a <= 1 and d - c <= 1 for a, b, c, d in called)


def test_what_the_mask_depends_on_must_be_given():
    by_head = mha.mask_function(lambda b, h, q, k: q >= k + h)
    by_batch = mha.mask_function(lambda b, h, q, k: q >= k + b)
    with pytest.raises(ValueError, match=r"depends on the head: write block_mask\(..., num_heads=...\)"):
        mha.block_mask(by_head, 10, 10)
    with pytest.raises(ValueError, match=r"depends on the batch element: write block_mask\(..., batch_shape=...\)"):
        mha.block_mask(by_batch, 10, 10, num_heads=2)
    x = np.random.default_rng(2).standard_normal((3, 2, 100, 4))
    for mask, sizes in ((by_head, {"num_heads": 2}), (by_batch, {"batch_shape": (3,)})):
        mapped = mha.block_mask(mask, 100, 100, **sizes)
        expected = mha.scaled_dot_product_attention(x, x, x, mask=mask)
        assert np.allclose(mha.scaled_dot_product_attention(x, x, x, mask=mapped), expected, atol=1e-12)
    with pytest.raises(ValueError, match=r"block_mask was made for 2 heads; the query has 1"):
        mha.scaled_dot_product_attention(x[:, :1], x[:, :1], x[:, :1], mask=mha.block_mask(by_head, 100, 100, num_heads=2))
    with pytest.raises(ValueError, match=r"block_mask was made for the batch shape \(3,\); that of the call is \(2,\)"):
        mha.scaled_dot_product_attention(x[:2], x[:2], x[:2], mask=mha.block_mask(by_batch, 100, 100, batch_shape=(3,)))
    mask = mha.block_mask(lower, 100, 100)
    with pytest.raises(ValueError, match=r"block_mask was made for 100 queries and 100 keys; there are 100 and 90"):
        mha.scaled_dot_product_attention(x, x[..., :90, :], x[..., :90, :], mask=mask, query_offset=0)


def test_a_map_may_be_for_calls_without_batch_axes():
    by_batch = mha.mask_function(lambda b, h, q, k: q >= k + b)
    x = np.random.default_rng(3).standard_normal((1, 70, 4))
    mapped = mha.block_mask(by_batch, 70, 70, batch_shape=())
    expected = mha.scaled_dot_product_attention(x, x, x, mask=mha.causal())
    assert np.allclose(mha.scaled_dot_product_attention(x, x, x, mask=mapped), expected, atol=1e-12)


@pytest.mark.parametrize("length", [63, 64, 130])
def test_every_library_makes_maps(backend, length):
    ids = backend.from_numpy(np.arange(length) // 50)
    mask = mha.block_mask(mha.mask_function(lambda b, h, q, k, ids: ids[q] == ids[k], [ids]), length, length)
    assert mask.counts == mha.block_mask(mha.segments(np.arange(length) // 50, np.arange(length) // 50), length, length).counts


def test_arrays_of_a_mask_are_checked():
    ids, x = np.repeat(np.arange(4), 5), np.random.default_rng(0).standard_normal((1, 20, 4))
    documents = mha.mask_function(lambda b, h, q, k, ids: ids[q] == ids[k], [ids])
    expected = mha.scaled_dot_product_attention(x, x, x, mask=mha.segments(ids, ids))
    assert np.allclose(mha.scaled_dot_product_attention(x, x, x, mask=documents), expected)
    assert np.allclose(mha.scaled_dot_product_attention(x, x, x, mask=mha.block_mask(documents, 20, 20)), expected)
    with pytest.raises(TypeError, match=r"mask_function\(arrays\) is one array; expected a list of arrays: write \[array\]"):
        mha.mask_function(lower, ids)
    with pytest.raises(TypeError, match=r"score_function\(arrays\[1\]\) is float; expected an array"):
        mha.score_function(lower, [ids, 3.0])
    import array_api_strict as strict

    mask = mha.mask_function(lambda b, h, q, k, ids: q >= k, [strict.asarray(ids)])
    with pytest.raises(mha.MhaError, match=r"mask_function\(inputs\[0\]\) is a array_api_strict"):
        mha.scaled_dot_product_attention(x, x, x, mask=mask)


@pytest.mark.parametrize(("make", "kind"), [(mha.mask_function, "(batch, head"), (mha.score_function, "(score, batch, head")])
def test_what_is_no_function_is_refused(make, kind):
    for wrong in (3, mha.causal(), np.ones(3), int):
        with pytest.raises(TypeError) as caught:
            make(wrong)
        assert kind in str(caught.value)
    with pytest.raises(TypeError, match=r"mask_function\(relation\) is int; expected a function of two pairs of positions"):
        mha.mask_function(lower, relation=3)


def test_functions_of_flex_attention_are_told_apart_by_their_parameters():
    x = np.random.default_rng(4).standard_normal((2, 3, 12, 4))
    mask = mha.from_flex(lambda b, h, q_idx, kv_idx: q_idx >= kv_idx)
    score = mha.from_flex(lambda score, b, h, q_idx, kv_idx: score + (q_idx - kv_idx))
    expected = mha.scaled_dot_product_attention(x, x, x, mask=mha.causal(), bias=np.arange(12.0)[:, None] - np.arange(12.0))
    assert np.allclose(mha.scaled_dot_product_attention(x, x, x, mask=mask, bias=score), expected)
    with pytest.raises(TypeError, match=r"from_flex\(<lambda>\) has 2 parameters; expected 4, .* or 5, \(score, batch"):
        mha.from_flex(lambda a, b: a)
    with pytest.raises(TypeError, match=r"from_flex\(function\) is int"):
        mha.from_flex(3)


def test_a_mask_function_needs_an_alignment():
    query, key = np.ones((1, 3, 2)), np.ones((1, 5, 2))
    with pytest.raises(ValueError, match="say how they align, with query_offset=0"):
        mha.scaled_dot_product_attention(query, key, key, mask=mha.mask_function(lower))


def test_a_bare_function_is_no_mask():
    x = np.ones((1, 3, 2))
    with pytest.raises(TypeError, match=r"mask is the function lower; expected a mask such as causal\(\), or a boolean array"):
        mha.scaled_dot_product_attention(x, x, x, mask=lower)


def test_explain_says_what_is_known_of_the_tiles():
    x = np.ones((1, 2, 130, 4))
    mapped = mha.explain("attention", x, x, x, mask=mha.block_mask(lower, 130, 130))
    assert mapped.tiles == "none 3, some 3, all 3"
    plain = mha.explain("attention", x, x, x, mask=mha.mask_function(lower))
    assert "tiles     not known: mha.block_mask(mask, 130, 130) finds those of which no pair attends" in str(plain)
    assert not mha.explain("attention", x, x, x, mask=mha.causal()).tiles
    both = mha.explain("attention", x, x, x, mask=mha.block_mask(lower, 130, 130), gradients=True)
    assert [call.tiles for call in both.calls] == ["none 3, some 3, all 3"] * 2


def test_a_key_that_no_query_sees_may_hold_anything():
    query, key, value = np.random.default_rng(5).standard_normal((3, 2, 130, 8))
    mask = mha.block_mask(lambda b, h, q, k: (k != 9) & (q >= k), 130, 130)
    expected = mha.scaled_dot_product_attention(query, key, value, mask=mask)
    key[:, 9] = value[:, 9] = np.nan
    assert np.array_equal(mha.scaled_dot_product_attention(query, key, value, mask=mask), expected)
    assert not mask.sees_every_key
    assert mha.block_mask(mha.causal(), 130, 130).sees_every_key
