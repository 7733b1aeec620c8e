"""The torch kernels ``functional`` of single operations."""

import pytest
import torch

import mha_core as mha

D = 8

OPERATIONS = {
    "linear": lambda x: mha.linear(x, torch.ones(D, 3, dtype=x.dtype) / 3, torch.ones(3, dtype=x.dtype)),
    "layer_norm": lambda x: mha.layer_norm(x, torch.linspace(1, 2, D, dtype=x.dtype), torch.ones(D, dtype=x.dtype)),
    "rms_norm": lambda x: mha.rms_norm(x, torch.linspace(1, 2, D, dtype=x.dtype)),
    "gelu": mha.gelu,
    "gelu tanh": lambda x: mha.gelu(x, approximate="tanh"),
    "silu": mha.silu,
    "relu": mha.relu,
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_is_fused_and_equals_the_algebra(rng, dtype, name):
    x = torch.asarray(rng.normal(size=(5, 3, D)) * 4).to(dtype)
    for view in (x, x.mT.contiguous().mT, x[:, ::2], x[:0]):
        kernel = "chunks" if name.startswith("gelu") else "functional"
        assert mha.explain(OPERATIONS[name], view).kernel == kernel
        with mha.verify() as done:
            y = OPERATIONS[name](view)
        assert done.checked == {(name.partition(" ")[0], kernel): 1}
        assert y.dtype == dtype


@pytest.mark.parametrize("rows", [1, 64])
def test_a_bias_of_any_stride(rows):
    generator = torch.Generator().manual_seed(0)
    x, w = torch.randn(rows, 300, generator=generator), torch.randn(300, 200, generator=generator)
    for b in (torch.randn(400, generator=generator)[::2], torch.randn(1, generator=generator).expand(200)):
        torch.testing.assert_close(mha.linear(x, w, b), x @ w + b, rtol=1e-4, atol=1e-4)
