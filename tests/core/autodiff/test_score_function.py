"""Scores that are functions of the caller, and their gradients."""

import importlib
from itertools import product

import needs
import numpy as np
import pytest

import mha_core as mha
from mha_core.algebra.grid import Grid
from mha_core.algebra.parts import Part
from mha_core.dispatch.backend import load

XP = load("numpy").xp


def curve(score, batch, head, query, key, cap, slopes, table, ids):
    nearer = cap * np.tanh(score / cap) - slopes[head] * abs(query - key)
    return np.where(ids[key] == ids[query], nearer + table[head, ids[key]], nearer) * (1 + batch)


def arguments(rng, kv_heads=4):
    query = rng.standard_normal((2, 4, 9, 5))
    key, value = (rng.standard_normal((2, kv_heads, 9, 5)) for _ in range(2))
    slopes, table, ids = rng.random(4), rng.standard_normal((4, 3)), rng.integers(0, 3, 9)
    return query, key, value, np.asarray([1.5]), slopes, table, ids


def attend(query, key, value, *arrays, **options):
    return mha.attention_state(query, key, value, bias=mha.score_function(curve, arrays), **options)


@pytest.mark.parametrize("options", [{}, {"mask": mha.causal()}, {"softcap": 2.0}, {"sink": np.asarray([0.1, -0.2, 0.3, 0.0])}])
@pytest.mark.parametrize("kernel", ["algebra", None])
@pytest.mark.parametrize("kv_heads", [4, 2])
def test_gradients_are_differences(options, kernel, kv_heads):
    rng = np.random.default_rng(5)
    inputs = arguments(rng, kv_heads)
    d_out, d_lse = rng.standard_normal((2, 4, 9, 5)), rng.standard_normal((2, 4, 9))

    def total(*inputs):
        out, lse = attend(*inputs, **options)
        return float((out * d_out).sum() + (lse * d_lse).sum())

    with mha.use_kernel("attention", kernel or "tiles"), mha.use_kernel("attention_vjp", kernel or "tiles"):
        _, pullback = mha.vjp(lambda *inputs: attend(*inputs, **options), *inputs)
        gradients = pullback((d_out, d_lse))
    assert gradients[6] is None
    for at, x in enumerate(inputs[:6]):
        step = rng.standard_normal(x.shape)
        higher, lower = ([*inputs[:at], x + sign * 1e-5 * step, *inputs[at + 1 :]] for sign in (1, -1))
        assert np.isclose((gradients[at] * step).sum(), (total(*higher) - total(*lower)) / 2e-5, rtol=1e-6, atol=1e-7), at


def test_a_part_computes_what_the_whole_does():
    bias = mha.score_function(
        lambda score, b, h, q, k, table: score * table[h] + 100 * q + k + b, [np.asarray([1.0, 2.0, 4.0])]
    )
    for rows, cols, heads, offset in product(
        (range(3, 7), range(1, 9, 2)), (range(2, 6), range(0, 8, 2)), (None, range(1, 3)), (5, np.asarray([1, 7]))
    ):
        part = Part(rows, cols, offset, heads, 3)
        whole = Grid(XP, None, tuple(rows), tuple(cols), offset, np.float64, (2, 3))
        scores = np.random.default_rng(0).standard_normal((2, 3, len(rows), len(cols)))
        expected = bias.added(scores, whole)
        some = slice(None) if heads is None else slice(heads.start, heads.stop)
        local = Grid(XP, None, range(len(rows)), range(len(cols)), part.query_offset, np.float64, (2, len(scores[0, some])))
        assert np.allclose(bias.part(XP, part).added(scores[:, some], local), expected[:, some]), part


def test_a_function_may_ignore_what_is_differentiated():
    x, unused = np.ones((1, 3, 2)), np.ones(2)
    bias = lambda unused: mha.score_function(lambda s, b, h, q, k, unused: 0.5 * (q - k), [unused])  # noqa: E731
    _, pullback = mha.vjp(
        lambda x, unused: mha.scaled_dot_product_attention(x, x, np.eye(3)[None], bias=bias(unused)), x, unused
    )
    of_x, of_unused = pullback(np.ones((1, 3, 3)))
    assert not of_x.any() and not of_unused.any()


def test_an_infinite_slope_of_a_hidden_pair_reaches_nothing():
    rng = np.random.default_rng(3)
    query, key, value = (abs(rng.standard_normal((1, 4, 3))) for _ in range(3))
    key[0, 2] = 0  # a score of 0, whose root has an infinite slope
    bias = mha.score_function(lambda score, b, h, q, k: np.sqrt(score))

    def attend(*arrays):
        return mha.scaled_dot_product_attention(*arrays, mask=np.asarray([True, True, False, True]), bias=bias)

    with np.errstate(all="ignore"):
        _, pullback = mha.vjp(attend, query, key, value)
        assert all(np.isfinite(d).all() for d in pullback(np.ones((1, 4, 3))))


def test_a_function_without_a_rule_is_named():
    x = np.ones((1, 3, 2))
    bias = mha.score_function(lambda score, b, h, q, k: np.sort(score))
    with pytest.raises(TypeError, match=r"sort of an array whose gradient is recorded"):
        mha.vjp(lambda x: mha.scaled_dot_product_attention(x, x, x, bias=bias), x)[1](x)


def test_an_array_that_is_read_from_the_surroundings_gets_no_gradient_and_says_so():
    def loss(x, slopes):
        bias = mha.score_function(lambda score, b, h, q, k: score - slopes[h] * abs(q - k))
        return mha.scaled_dot_product_attention(x, x, x, bias=bias)

    with pytest.raises(
        TypeError, match=r"score_function\(<lambda>\) reads an array whose gradient is recorded: pass it in arr"
    ):
        mha.vjp(loss, np.ones((1, 3, 2)), np.ones(1))


@pytest.mark.parametrize("result", [3.0, np.ones(2, dtype=int)])
def test_results_of_another_kind_are_refused(result):
    x = np.ones((1, 2, 4))
    with pytest.raises(TypeError, match=r"score_function\(<lambda>\) returned .*; expected .*floating numbers"):
        mha.scaled_dot_product_attention(x, x, x, bias=mha.score_function(lambda *indices: result))


def test_a_score_function_is_no_number():
    with pytest.raises(TypeError, match=r"call its method added\(scores, grid\)"):
        mha.score_function(lambda score, b, h, q, k: score).block(Grid(XP, None, range(1), range(1)))


def test_arrays_in_half_precision_are_combined_in_the_dtype_of_the_scores():
    rng = np.random.default_rng(3)
    x, a, b = (rng.standard_normal(shape).astype(np.float16) for shape in ((1, 4, 2), (4,), (4,)))

    def product(score, batch, head, query, key, a, b):
        return score + a[query] * b[key]

    wide = [y.astype(np.float32) for y in (a, b)]
    expected = mha.attention_state(x, x, x, bias=mha.score_function(product, wide)).lse
    assert (mha.attention_state(x, x, x, bias=mha.score_function(product, [a, b])).lse == expected).all()


@pytest.mark.parametrize("by_batch", [False, True])
def test_only_the_values_may_have_batch_axes(by_batch):
    rng = np.random.default_rng(4)
    query, key, value, step = (rng.standard_normal(shape) for shape in ((1, 4, 3), (1, 4, 3), (3, 1, 4, 3), (1, 4, 3)))
    d_out = rng.standard_normal((3, 1, 4, 3))
    scaled = mha.score_function(lambda score, b, h, q, k: score * (1 + b) if by_batch else score * 1.5)
    with mha.use_kernel("attention", "algebra"), mha.use_kernel("attention_vjp", "algebra"):
        _, pullback = mha.vjp(mha.scaled_dot_product_attention, query, key, value, bias=scaled)
        ends = [mha.scaled_dot_product_attention(query + sign * 1e-6 * step, key, value, bias=scaled) for sign in (1, -1)]
    assert np.isclose((pullback(d_out)[0] * step).sum(), ((ends[0] - ends[1]) * d_out).sum() / 2e-6, rtol=1e-6)


@pytest.mark.parametrize("library", ["array_api_strict", pytest.param("mlx.core", marks=needs.installed("mha_mlx", "mlx"))])
def test_a_library_whose_arrays_refuse_others_has_gradients(library):
    """array_api_strict raises a TypeError, MLX a ValueError."""
    xp = importlib.import_module(library)
    x, slopes = xp.asarray(np.random.default_rng(5).standard_normal((1, 3, 2)).astype("f")), xp.asarray([2.0], dtype=xp.float32)
    less = mha.score_function(lambda score, b, h, q, k, slopes: slopes[h] - score, [slopes])
    _, pullback = mha.vjp(mha.scaled_dot_product_attention, x, x, x, bias=less, wrt=lambda name: name == "query")
    negative = mha.vjp(mha.scaled_dot_product_attention, x, x, x, scale=-(2**-0.5), wrt=lambda name: name == "query")[1]
    d_query, expected = pullback(x)[0], negative(x)[0]
    assert xp.all(xp.abs(d_query - expected) < 1e-6) and xp.any(expected != 0)


@pytest.mark.parametrize("kernel", ["tiles", "algebra"])
def test_positions_are_those_of_the_caller_where_keys_are_dropped(kernel):
    query, key, value = np.random.default_rng(6).standard_normal((3, 2, 9, 4))
    bias = mha.score_function(lambda score, b, h, q, k: score + 0.1 * k * k * (h + 1) - 0.2 * q)
    added = 0.1 * np.arange(9) ** 2 * np.asarray([1, 2])[:, None, None] - 0.2 * (np.arange(3) + 6)[:, None]
    options = {"mask": mha.window(2, 0), "query_offset": 6}
    with mha.use_kernel("attention", kernel):
        out, expected = (mha.scaled_dot_product_attention(query[:, :3], key, value, bias=x, **options) for x in (bias, added))
    assert np.allclose(out, expected, atol=1e-12)
