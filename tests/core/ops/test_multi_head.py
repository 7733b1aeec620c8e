"""Self-attention and multi-head attention from weights: the formulas in plain NumPy, and errors."""

import math

import numpy as np
import pytest

import mha_core as mha


def softmax(scores):
    exponentials = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return exponentials / exponentials.sum(axis=-1, keepdims=True)


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
    w_q, w_k, w_v, w_o = (rng.normal(size=shape) for shape in [(3, 6), (3, 6), (3, 2 * d_v), (2 * d_v, 3)])
    heads = []
    for q, k, v in zip(*(np.split(w, num_heads, axis=1) for w in (w_q, w_k, w_v)), strict=True):
        heads.append(softmax((x @ q) @ (x @ k).T / math.sqrt(3)) @ (x @ v))
    expected = np.concatenate(heads, axis=1) @ w_o
    y = mha.multi_head_attention(*map(backend.from_numpy, (x, w_q, w_k, w_v, w_o)), num_heads)
    np.testing.assert_allclose(backend.to_numpy(y), expected, atol=1e-13)
    y = mha.multi_head_attention(*map(backend.from_numpy, (np.stack([x, 2 * x]), w_q, w_k, w_v, w_o)), num_heads=num_heads)
    np.testing.assert_allclose(backend.to_numpy(y)[0], expected, atol=1e-13)


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
    arguments = {"x": np.ones((2, 3)), **{name: np.ones((3, 6)) for name in ("w_q", "w_k", "w_v")}, "w_o": np.ones((6, 3))}
    with pytest.raises(error) as raised:
        mha.multi_head_attention(**(arguments | {"num_heads": 2} | change))
    assert message in str(raised.value)
