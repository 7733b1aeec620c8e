"""torch.autocast has no effect inside our operations: results have the arguments' dtype, and the same bits as without it."""

from contextlib import nullcontext

import numpy as np
import pytest
import torch

import mha_core as mha

X, Y = (torch.from_numpy(np.random.default_rng(seed).normal(size=(2, 4, 8, 16)).astype(np.float32)) for seed in (0, 1))
W, B = X[0, 0, :, :].T.contiguous(), Y[0, 0, 0, :8]
SQUARE = torch.eye(16) + 0.1 * Y[0, 0, :1, :]
LAYER = mha.EncoderLayer.init(d_model=16, num_heads=2, d_ff=32, seed=0, backend="torch")
STACK = mha.Decoder.init(d_model=16, num_heads=2, d_ff=32, num_layers=2, seed=0, backend="torch")
OPERATIONS = {
    "attention": lambda: mha.scaled_dot_product_attention(X, Y, X),
    "causal": lambda: mha.scaled_dot_product_attention(X, Y, X, mask=mha.causal()),
    "two axes": lambda: mha.scaled_dot_product_attention(X[0, 0], Y[0, 0], X[0, 0]),
    "mask, bias and softcap": lambda: mha.scaled_dot_product_attention(
        X, Y, X, mask=mha.causal() | mha.prefix(2), bias=mha.alibi(4), softcap=2.0
    ),
    "attention_state": lambda: torch.cat([x.flatten() for x in mha.attention_state(X, Y, X)]),
    "attention_weights": lambda: mha.attention_weights(X, Y),
    "merge_states": lambda: mha.merge_states(mha.attention_state(X, Y, X), mha.attention_state(X, X, Y)).out,
    "linear": lambda: mha.linear(X, W, B),
    "linear of one axis": lambda: mha.linear(torch.tensor(2.0).reshape(1), torch.ones(1, 1)),
    "layer_norm": lambda: mha.layer_norm(X),
    "rms_norm": lambda: mha.rms_norm(X),
    "gelu": lambda: mha.gelu(X),
    "relu of no axes": lambda: mha.relu(torch.tensor(2.0)),
    "feed_forward": lambda: mha.feed_forward(X, W, B, W.T, None),
    "multi_head_attention": lambda: mha.multi_head_attention(X, SQUARE, SQUARE, SQUARE, SQUARE, 2),
    "encoder layer": lambda: LAYER(X, mask=mha.causal()),
    "decoder": lambda: STACK(X[0], Y[0]),
}


@pytest.mark.parametrize("watched", [False, True], ids=["plain", "verified"])
@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_has_the_same_bits_under_autocast(name, watched):
    expected = OPERATIONS[name]()
    with torch.autocast("cpu", dtype=torch.bfloat16), mha.verify() if watched else nullcontext():
        actual = OPERATIONS[name]()
    assert actual.dtype == torch.float32
    assert torch.equal(actual, expected)


def test_gradients_of_a_loss_under_autocast_equal_those_without():
    """``backward`` is called outside, as torch's documentation advises: torch.autocast would change what it calls."""

    def loss(x):
        return LAYER(x, mask=mha.causal()).square().sum()

    x, y = (X.clone().requires_grad_() for _ in range(2))
    loss(x).backward()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = loss(y)
    inside.backward()
    assert torch.equal(x.grad, y.grad)


def test_the_same_kernel_is_chosen_and_needs_no_feature():
    outside = mha.explain("attention", X, Y, X)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = mha.explain("attention", X, Y, X)
        assert torch.mm(SQUARE, SQUARE).dtype == torch.bfloat16  # torch's own operations are still changed
    assert (inside.kernel, inside.features) == (outside.kernel, outside.features)


def test_a_call_after_autocast_uses_no_plan_of_a_call_inside(monkeypatch):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mha.linear(X, W)
    entered = []
    monkeypatch.setattr(torch, "autocast", lambda *args, **options: entered.append(args))
    mha.linear(X, W)
    assert not entered
