"""Layers read from torch modules give torch's results, in float64, to 1e-12."""

import numpy as np
import pytest
import torch
from refusals import refusals
from torch import nn

import mha_core as mha

D, HEADS, FF = 12, 3, 20


def randomised(module, seed=0):
    """Return the module in float64 and eval mode, with every parameter random, also those of norms."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype) * 0.5)
    return module.double().eval()


def tensors(rng, *shapes):
    return [torch.asarray(rng.normal(size=shape)) for shape in shapes]


def close(actual, expected):
    np.testing.assert_allclose(actual.detach().numpy(), expected.detach().numpy(), rtol=0, atol=1e-12)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("widths", [{}, {"kdim": 7, "vdim": 5}, {"kdim": 7, "vdim": 7}])
def test_multi_head_attention(rng, bias, widths):
    module = randomised(nn.MultiheadAttention(D, HEADS, bias=bias, batch_first=True, **widths))
    x, keys, values = tensors(rng, (2, 4, D), (2, 6, widths.get("kdim", D)), (2, 6, widths.get("vdim", D)))
    ours = mha.MultiHeadAttention.from_torch(module)
    expected, _ = module(x, keys, values)
    close(ours(x, context=keys, value_context=values), expected)
    hidden = torch.asarray(rng.random((2, 6)) < 0.4)
    hidden[:, 0] = False
    expected, weights = module(x, keys, values, key_padding_mask=hidden, average_attn_weights=False)
    mask = ~hidden[:, None, None, :]
    close(ours(x, context=keys, value_context=values, mask=mask), expected)
    q, k = x @ ours.w_q, keys @ ours.w_k
    if bias:
        q, k = q + ours.b_q, k + ours.b_k
    q, k = (y.reshape(2, -1, HEADS, D // HEADS).swapaxes(1, 2) for y in (q, k))
    close(mha.attention_weights(q, k, mask=mask), weights)


@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("activation", ["relu", "gelu", nn.GELU(approximate="tanh"), nn.SiLU()], ids=str)
def test_encoder_layer(rng, norm_first, activation):
    module = randomised(
        nn.TransformerEncoderLayer(D, HEADS, FF, 0.1, activation, 1e-3, batch_first=True, norm_first=norm_first)
    )
    ours = mha.EncoderLayer.from_torch(module)
    (x,) = tensors(rng, (2, 5, D))
    close(ours(x), module(x))
    hidden = torch.triu(torch.ones(5, 5, dtype=torch.bool), 1)
    close(ours(x, mask=mha.causal()), module(x, src_mask=hidden))


@pytest.mark.parametrize("norm", [None, nn.LayerNorm(D, eps=0.1)])
@pytest.mark.parametrize("norm_first", [True, False])
def test_encoder(rng, norm, norm_first):
    """Every norm keeps its eps."""
    layer = nn.TransformerEncoderLayer(D, HEADS, FF, batch_first=True, norm_first=norm_first)
    module = randomised(nn.TransformerEncoder(layer, 3, norm, enable_nested_tensor=False))
    module.layers[0].norm2.eps, module.layers[1].norm1.eps = 0.5, 0.2
    (x,) = tensors(rng, (2, 5, D))
    close(mha.Encoder.from_torch(module)(x), module(x))


def changed(module):
    """Return the module with another activation in its second layer."""
    module.layers[1].activation = nn.functional.gelu
    return module


@pytest.mark.parametrize("norm_first", [True, False])
def test_decoder_layer_and_decoder(rng, norm_first):
    layer = nn.TransformerDecoderLayer(D, HEADS, FF, batch_first=True, norm_first=norm_first, activation="gelu")
    y, memory = tensors(rng, (2, 5, D), (2, 7, D))
    hidden = torch.triu(torch.ones(5, 5, dtype=torch.bool), 1)
    padded = torch.arange(7) >= torch.asarray([[4], [7]])
    memory_mask = mha.key_lengths(torch.asarray([4, 7]))
    module = randomised(layer)
    expected = module(y, memory, tgt_mask=hidden, memory_key_padding_mask=padded)
    close(mha.DecoderLayer.from_torch(module)(y, memory, memory_mask=memory_mask), expected)
    module = randomised(nn.TransformerDecoder(layer, 2, nn.LayerNorm(D)), seed=1)
    expected = module(y, memory, tgt_mask=hidden, memory_key_padding_mask=padded)
    ours = mha.Decoder.from_torch(module)
    close(ours(y, memory, memory_mask=memory_mask), expected)
    cache = mha.DecoderCache()
    steps = [ours(y[:, at : at + 1], memory, memory_mask=memory_mask, cache=cache) for at in range(5)]
    close(torch.cat(steps, dim=1), expected)


def test_a_state_dict_with_its_missing_settings(rng):
    module = randomised(nn.TransformerEncoderLayer(D, HEADS, FF, batch_first=True, activation="gelu", norm_first=True))
    (x,) = tensors(rng, (2, 5, D))
    settings = {"num_heads": HEADS, "activation": "gelu", "norm_first": True}
    close(mha.EncoderLayer.from_torch(module.state_dict(), **settings)(x), module(x))
    attention = mha.MultiHeadAttention.from_torch(module.self_attn.state_dict(), num_heads=HEADS)
    close(attention(x), module.self_attn(x, x, x)[0])


def test_gradients(rng):
    layer = mha.EncoderLayer.init(d_model=4, num_heads=2, d_ff=6, activation="gelu", seed=0, backend="torch", dtype="float64")
    assert torch.autograd.gradcheck(layer, [x.requires_grad_() for x in tensors(rng, (2, 3, 4))])


SET = {"num_heads": HEADS, "activation": "relu", "norm_first": False}
MODULE = nn.TransformerEncoderLayer(D, HEADS, FF)
STATE = MODULE.state_dict()


def stacked(*norm):
    return nn.TransformerEncoder(MODULE, 2, *norm, enable_nested_tensor=False)


def encoder_layer(state=STATE, **settings):
    return lambda: mha.EncoderLayer.from_torch(state, **settings)


test_errors_name_what_does_not_fit = refusals(
    {
        ValueError: {
            "unknown extra": encoder_layer({**STATE, "extra": STATE["norm1.bias"]}, **SET),
            "the state dict does not fit EncoderLayer: missing linear1.weight": encoder_layer(
                {name: x for name, x in STATE.items() if "linear1" not in name}, **SET
            ),
            "missing multihead_attn.in_proj_weight": lambda: mha.DecoderLayer.from_torch(STATE, **SET),
            "missing layers.0.self_attn.in_proj_weight": lambda: mha.Encoder.from_torch({}, **SET),
            "add_bias_kv and add_zero_attn have no counterpart here": lambda: mha.MultiHeadAttention.from_torch(
                nn.MultiheadAttention(D, HEADS, add_bias_kv=True)
            ),
            "activation is 'elu'": encoder_layer(**{**SET, "activation": "elu"}),
            "norm is RMSNorm((12,), eps=None, elementwise_affine=True), which has no counterpart here": lambda: (
                mha.Encoder.from_torch(stacked(nn.RMSNorm(D)))
            ),
            "the layers of TransformerEncoder differ in their settings": lambda: mha.Encoder.from_torch(changed(stacked())),
            "activation Tanh has no counterpart here; known: gelu, relu, silu": encoder_layer(
                nn.TransformerEncoderLayer(D, HEADS, FF, activation=nn.Tanh())
            ),
        },
        TypeError: {
            "give activation=, norm_first=": encoder_layer(num_heads=3),
            "num_heads is given with a module, which holds it: leave it out": encoder_layer(MODULE, num_heads=3),
            "from_torch has no option heads": encoder_layer(**SET, heads=1),
            "from_torch was given a str": encoder_layer("x", **SET),
            "a FeedForward cannot be read from torch by itself; expected one of MultiHeadAttention, ": lambda: (
                mha.FeedForward.from_torch(STATE)
            ),
            "from_torch was given a Linear, which is not": lambda: mha.Encoder.from_torch(nn.Linear(3, 3)),
        },
    }
)
