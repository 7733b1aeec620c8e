"""Masks and scores as functions on torch: gradients and their gradients, compiled functions, and memory."""

import numpy as np
import pytest

import mha_core as mha

torch = pytest.importorskip("torch")


def curve(score, b, h, q, k, cap, slopes, ids):
    return torch.where(ids[q] == ids[k], cap * torch.tanh(score / cap), score) - slopes[h] * (q - k).abs()


def attend(query, key, value, cap, slopes, ids, **options):
    return mha.scaled_dot_product_attention(query, key, value, bias=mha.score_function(curve, [cap, slopes, ids]), **options)


def arrays(length, dtype=torch.float64, heads=2):
    generator = torch.Generator().manual_seed(length)
    made = [torch.randn(2, heads, length, 4, dtype=dtype, generator=generator) for _ in range(3)]
    made += [torch.tensor(1.5, dtype=dtype), torch.rand(heads, dtype=dtype, generator=generator)]
    return [x.requires_grad_() for x in made] + [torch.arange(length) % 3]


def test_gradients_and_their_gradients():
    inputs = arrays(4)

    def function(*inputs):
        return attend(*inputs, mask=mha.mask_function(lambda b, h, q, k: q >= k - h))

    assert "recompute" in str(mha.explain(function, *inputs)).splitlines()[0]
    assert torch.autograd.gradcheck(function, inputs)
    assert torch.autograd.gradgradcheck(function, inputs)


@pytest.mark.parametrize("options", [{}, {"mask": mha.causal()}, {"softcap": 3.0}])
def test_torch_computes_what_numpy_does(options):
    inputs = arrays(70)
    out = attend(*inputs, **options)
    d = torch.cos(torch.arange(out.numel(), dtype=out.dtype)).reshape(out.shape)
    actual = torch.autograd.grad(out, inputs[:5], d)

    def on_numpy(query, key, value, cap, slopes):
        def function(score, b, h, q, k, cap, slopes, ids):
            return np.where(ids[q] == ids[k], cap * np.tanh(score / cap), score) - slopes[h] * abs(q - k)

        bias = mha.score_function(function, [cap, slopes, inputs[5].numpy()])
        return mha.scaled_dot_product_attention(query, key, value, bias=bias, **options)

    expected, pullback = mha.vjp(on_numpy, *(x.detach().numpy() for x in inputs[:5]))
    assert np.allclose(out.detach(), expected, atol=1e-12)
    for x, wanted in zip(actual, pullback(d.numpy()), strict=True):
        assert np.allclose(x, wanted, atol=1e-10)


def test_an_array_without_a_gradient_gets_none():
    inputs = arrays(9)
    inputs[4] = inputs[4].detach()
    attend(*inputs).sum().backward()
    assert inputs[4].grad is None
    assert inputs[3].grad is not None


def test_a_mask_function_has_gradients():
    query, key, value = (torch.randn(1, 2, 30, 4, dtype=torch.float64, requires_grad=True) for _ in range(3))
    for mask in (mha.mask_function(lambda b, h, q, k: q >= k), mha.block_mask(lambda b, h, q, k: q >= k, 30, 30)):
        totals = (
            mha.scaled_dot_product_attention(query, key, value, mask=each).square().sum() for each in (mask, mha.causal())
        )
        actual, expected = (torch.autograd.grad(total, (query, key, value)) for total in totals)
        for x, wanted in zip(actual, expected, strict=True):
            assert torch.allclose(x, wanted, atol=1e-12)
