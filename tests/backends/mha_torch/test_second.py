"""Second derivatives of attention on torch: the algebra has them; its fused kernels raise an error that says what to write."""

import pytest
import torch

import mha_core as mha

WRITE = r"compute the forward pass with mha\.use_kernel\('attention', 'algebra'\), which has one"


@pytest.mark.parametrize("options", [{}, {"mask": mha.causal()}], ids=["plain", "causal"])
def test_a_second_derivative_of_the_kernel_is_refused_with_what_to_write(options):
    x = torch.linspace(-1, 1, 24).reshape(1, 1, 6, 4).requires_grad_()

    def gradient(**more):
        (actual,) = torch.autograd.grad(mha.scaled_dot_product_attention(x, x, x, **options).square().sum(), x, **more)
        return actual

    first = gradient(create_graph=True)
    assert torch.equal(first, gradient())  # only the second is refused
    with pytest.raises(NotImplementedError, match=WRITE):
        first.sum().backward()
    with mha.use_kernel("attention", "algebra"):
        gradient(create_graph=True).sum().backward()
    assert x.grad.isfinite().all() and x.grad.abs().max() > 0


def test_a_second_derivative_by_torch_func_is_refused_in_the_same_words():
    x = torch.linspace(-1, 1, 24).reshape(1, 1, 6, 4)

    def loss(y):
        return mha.scaled_dot_product_attention(y, y, y).square().sum()

    first = torch.func.grad(loss)
    assert first(x).isfinite().all()
    with pytest.raises(NotImplementedError, match=WRITE):
        torch.func.grad(lambda y: first(y).sum())(x)
    with mha.use_kernel("attention", "algebra"):
        assert torch.func.grad(lambda y: first(y).sum())(x).isfinite().all()
