"""Self-attention by its formula in plain NumPy, and bad weights of multi-head attention, which the conformance suite judges."""

import math

import numpy as np
from refusals import refusals

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


def attended(**change):
    arguments = {"x": np.ones((2, 3)), **{name: np.ones((3, 6)) for name in ("w_q", "w_k", "w_v")}, "w_o": np.ones((6, 3))}
    return lambda: mha.multi_head_attention(**(arguments | {"num_heads": 2} | change))


test_bad_weights_are_refused_by_name = refusals(
    {
        ValueError: {
            "x has 3 features; this layer takes 4 (d_model)": attended(w_q=np.ones((4, 6))),
            "x has 3 features; this layer takes 4 (d_context, the rows of w_v)": attended(w_v=np.ones((4, 6))),
            "context has 2 features; this layer takes 3 (d_context, the rows of w_k)": attended(context=np.ones((2, 2))),
            "w_q has shape (6,); expected (3, 2 * d): a row for each feature of x": attended(w_q=np.ones(6)),
            "columns that divide into 2 heads": attended(w_k=np.ones((3, 5))),
            "w_q makes heads of 3 features, but w_k of 2": attended(w_k=np.ones((3, 4))),
            "w_o has shape (5, 3); expected (6, d_out)": attended(w_o=np.ones((5, 3))),
            "num_heads is 0": attended(num_heads=0),
            "num_kv_heads is 3; expected an int of at least 1 that divides num_heads = 2": attended(num_kv_heads=3),
            "b_q has shape (5,); expected a number for each column": attended(b_q=np.ones(5)),
            "x has shape (3,); expected at least 2 axes": attended(x=np.ones(3)),
        },
        TypeError: {
            "num_heads is float; expected an int": attended(num_heads=2.0),
            "w_v has dtype float32, but x has float64": attended(w_v=np.ones((3, 6), dtype=np.float32)),
        },
    }
)
