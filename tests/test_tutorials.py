"""Attention in the forms that tutorials use, against the same formulas in plain NumPy."""

import math

import numpy as np
import pytest

import mha_core as mha


def softmax(scores):
    exponentials = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return exponentials / exponentials.sum(axis=-1, keepdims=True)


def norm(x, eps=1e-5):
    return (x - x.mean(axis=-1, keepdims=True)) / np.sqrt(x.var(axis=-1, keepdims=True) + eps)


def test_self_attention_gives_output_and_weights(backend, rng):
    x, w_q, w_k, w_v = (rng.normal(size=shape) for shape in [(3, 4), (4, 3), (4, 3), (4, 5)])
    output, weights = mha.self_attention(*map(backend.from_numpy, (x, w_q, w_k, w_v)))
    expected = softmax((x @ w_q) @ (x @ w_k).T / math.sqrt(3))
    np.testing.assert_allclose(backend.to_numpy(weights), expected, atol=1e-14)
    np.testing.assert_allclose(backend.to_numpy(output), expected @ (x @ w_v), atol=1e-14)


def test_self_attention_takes_batches_and_options(backend, rng):
    x, w = rng.normal(size=(2, 3, 4)), rng.normal(size=(3, 4, 4))
    output, weights = mha.self_attention(*map(backend.from_numpy, (x, *w)), mask=mha.causal())
    for at in range(2):
        alone, alone_weights = mha.self_attention(*map(backend.from_numpy, (x[at], *w)), mask=mha.causal())
        np.testing.assert_allclose(backend.to_numpy(output)[at], backend.to_numpy(alone), atol=1e-14)
        np.testing.assert_allclose(backend.to_numpy(weights)[at], backend.to_numpy(alone_weights), atol=1e-14)
    assert (np.triu(backend.to_numpy(weights)[0], 1) == 0).all()


@pytest.mark.parametrize("d_v", [3, 5])
def test_multi_head_attention_splits_attends_concatenates_and_projects(backend, rng, d_v):
    x, num_heads = rng.normal(size=(2, 3)), 2
    w_q, w_k, w_v, w_o = (
        rng.normal(size=(3, 6)),
        rng.normal(size=(3, 6)),
        rng.normal(size=(3, 2 * d_v)),
        rng.normal(size=(2 * d_v, 3)),
    )
    heads = []
    for q, k, v in zip(*(np.split(w, num_heads, axis=1) for w in (w_q, w_k, w_v)), strict=True):
        heads.append(softmax((x @ q) @ (x @ k).T / math.sqrt(3)) @ (x @ v))
    expected = np.concatenate(heads, axis=1) @ w_o
    y = mha.multi_head_attention(*map(backend.from_numpy, (x, w_q, w_k, w_v, w_o)), num_heads)
    np.testing.assert_allclose(backend.to_numpy(y), expected, atol=1e-13)
    y = mha.multi_head_attention(*map(backend.from_numpy, (np.stack([x, 2 * x]), w_q, w_k, w_v, w_o)), num_heads=num_heads)
    np.testing.assert_allclose(backend.to_numpy(y)[0], expected, atol=1e-13)


def test_cross_attention_and_grouped_heads(backend, rng):
    x, context = rng.normal(size=(4, 8)), rng.normal(size=(6, 5))
    w_q, w_k, w_v, w_o = rng.normal(size=(8, 8)), rng.normal(size=(5, 4)), rng.normal(size=(5, 6)), rng.normal(size=(12, 8))
    q, k, v = x @ w_q, context @ w_k, context @ w_v
    heads = [
        softmax(q[:, 2 * h : 2 * h + 2] @ k[:, 2 * (h // 2) : 2 * (h // 2) + 2].T / math.sqrt(2))
        @ v[:, 3 * (h // 2) : 3 * (h // 2) + 3]
        for h in range(4)
    ]
    y = mha.multi_head_attention(
        *map(backend.from_numpy, (x, w_q, w_k, w_v, w_o)), 4, context=backend.from_numpy(context), num_kv_heads=2
    )
    np.testing.assert_allclose(backend.to_numpy(y), np.concatenate(heads, axis=1) @ w_o, atol=1e-13)


def test_the_encoder_of_the_original_paper(backend):
    """x = embedding + positions; y = layer_norm(multi_head(x) + x); z = layer_norm(ffn(y) + y), with the paper's sizes."""
    layer = mha.EncoderLayer.init(seed=1, backend=backend.name, dtype="float64")
    a, f = layer.attention, layer.feed_forward
    weights = {name: backend.to_numpy(x) for name, x in layer.arrays().items()}
    assert weights["attention.w_q"].shape == (512, 512) and weights["feed_forward.w_1"].shape == (512, 2048)
    assert a.num_heads == 8
    table = mha.EncoderLayer.init(seed=2, backend=backend.name, dtype="float64").attention.w_q
    ids = backend.from_numpy(np.asarray([5, 3, 5, 511]))
    x = mha.embedding(ids, table) + mha.sinusoidal_positions(4, 512, backend=backend.name, dtype=backend.xp.float64)
    y = mha.layer_norm(a(x) + x)
    z = mha.layer_norm(mha.feed_forward(y, f.w_1, f.b_1, f.w_2, f.b_2) + y)

    position, even = np.arange(4)[:, None], np.arange(0, 512, 2)
    angles = position / 10000 ** (even / 512)
    expected = backend.to_numpy(table)[[5, 3, 5, 511]] + np.stack([np.sin(angles), np.cos(angles)], axis=-1).reshape(4, 512)
    np.testing.assert_allclose(backend.to_numpy(x), expected, atol=1e-12)
    q, k, v = (expected @ weights[f"attention.w_{name}"] for name in "qkv")
    heads = [softmax(q[:, s] @ k[:, s].T / 8) @ v[:, s] for s in (slice(64 * h, 64 * h + 64) for h in range(8))]
    expected = norm(np.concatenate(heads, axis=1) @ weights["attention.w_o"] + expected)
    hidden = np.maximum(expected @ weights["feed_forward.w_1"], 0)
    expected = norm(hidden @ weights["feed_forward.w_2"] + expected)
    np.testing.assert_allclose(backend.to_numpy(z), expected, atol=1e-12)
    np.testing.assert_allclose(backend.to_numpy(layer(x)), expected, atol=1e-12)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"w_q": np.ones((4, 6))}, ValueError, "w_q has shape (4, 6); expected (3, 2 * d): a row for each feature of x"),
        ({"w_k": np.ones((3, 5))}, ValueError, "columns that divide into 2 heads"),
        ({"w_k": np.ones((3, 4))}, ValueError, "w_q makes heads of 3 features, but w_k of 2"),
        ({"w_o": np.ones((5, 3))}, ValueError, "w_o has shape (5, 3); expected (6, d_out)"),
        ({"num_heads": 0}, ValueError, "num_heads is 0"),
        ({"num_heads": 2.0}, TypeError, "num_heads is float; expected an int"),
        ({"num_kv_heads": 3}, ValueError, "num_kv_heads is 3; expected an int of at least 1 that divides num_heads = 2"),
        ({"b_q": np.ones(5)}, ValueError, "b_q has shape (5,); expected a number for each column"),
        ({"x": np.ones(3)}, ValueError, "x has shape (3,); expected at least 2 axes"),
        ({"w_v": np.ones((3, 6), dtype=np.float32)}, TypeError, "w_v has dtype float32, but x has float64"),
    ],
)
def test_bad_weights_are_refused_by_name(change, error, message):
    arguments = {
        "x": np.ones((2, 3)),
        "w_q": np.ones((3, 6)),
        "w_k": np.ones((3, 6)),
        "w_v": np.ones((3, 6)),
        "w_o": np.ones((6, 3)),
    }
    with pytest.raises(error) as raised:
        mha.multi_head_attention(**(arguments | {"num_heads": 2} | change))
    assert message in str(raised.value)
