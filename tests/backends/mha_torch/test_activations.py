"""torch's kernels for the gradients of pieces and for AdamW: numbers of the algebra, NaN and infinity, what is not written."""

import math

import numpy as np
import pytest
import torch

import mha_core as mha
from mha_core.ops.updates import adamw
from mha_core.plugin import Call
from mha_torch import activations, onednn, updates
from mha_torch.gradients import _sorted_sums

CASES = {
    "gelu": (mha.gelu, "fused", [(700, 48)], {}),
    "gelu tanh": (mha.gelu, "fused", [(700, 48)], {"approximate": "tanh"}),
    "silu": (mha.silu, "fused", [(700, 48)], {}),
    "relu": (mha.relu, "fused", [(700, 48)], {}),
    "layer_norm": (mha.layer_norm, "fused", [(5, 7, 48), (48,), (48,)], {}),
}


def pulled(name, arrays, d, kernel):
    function, _, _, options = CASES[name]
    with mha.use_kernel(f"{name.partition(' ')[0]}_vjp", kernel):
        return mha.vjp(function, *arrays, **options)[1](d)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_gradients_equal_those_of_the_algebra(rng, name, dtype):
    _, kernel, shapes, _ = CASES[name]
    arrays = [torch.asarray(3 * rng.normal(size=shape)).to(dtype) for shape in shapes]
    d = torch.asarray(rng.normal(size=shapes[0])).to(dtype)
    for x in (arrays[0], arrays[0].mT.contiguous().mT, arrays[0][::2], arrays[0][:0]):
        actual, exact = (pulled(name, [x, *arrays[1:]], d[: len(x)], by) for by in (kernel, "algebra"))
        for a, b in zip(actual, exact, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["gelu", "gelu tanh", "silu", "relu"])
def test_slopes_at_infinities_and_nan(name):
    x = torch.tensor([math.inf, -math.inf, math.nan, 1.0])
    (actual,) = pulled(name, [x], torch.full((4,), 2.0), "fused")
    assert actual[0] == 2 and actual[1] == 0 and actual[2].isnan() and actual[3].isfinite()


@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_infinity_is_put_back_into_its_chunk(rng, approximate):
    x = torch.asarray(rng.normal(size=3 * activations._ELEMENTS)).float()
    x[activations._ELEMENTS + 1] = math.inf
    assert mha.explain("gelu", x, approximate=approximate).kernel == "chunks"
    y = mha.gelu(x, approximate=approximate)
    assert y[activations._ELEMENTS + 1] == math.inf and int(y.isfinite().sum()) == len(y) - 1


def test_gradients_that_torch_records_are_left_to_it():
    x = torch.ones(3).requires_grad_()
    explained = mha.explain(mha.gelu, x)
    assert explained.kernel == "functional" and ("chunks", "does not handle gradient") in explained.rejected


@pytest.mark.parametrize("wanted", [("x",), ("weight",), ("bias",), ("x", "bias")], ids="+".join)
def test_only_what_is_wanted_of_a_norm_is_computed(rng, wanted):
    arrays = [torch.asarray(rng.normal(size=shape)).float() for shape in ((4, 8), (8,), (8,))]
    _, pullback = mha.vjp(mha.layer_norm, *arrays, wrt=lambda name: name in wanted)
    results = dict(zip(("x", "weight", "bias"), pullback(arrays[0]), strict=True))
    assert {name for name, d in results.items() if d is not None} == set(wanted)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_the_gradient_of_an_embedding(rng, dtype):
    ids = torch.asarray(rng.integers(-7, 7, size=(5, 40)))
    d = torch.asarray(rng.integers(-3, 4, size=(5, 40, 3))).to(dtype)
    table = torch.zeros(7, 3, dtype=dtype)
    actual = mha.vjp(mha.embedding, ids, table)[1](d)[1]
    exact = np.zeros((7, 3))
    np.add.at(exact, ids.numpy().reshape(-1) % 7, d.double().numpy().reshape(-1, 3))
    assert actual.dtype == dtype
    np.testing.assert_array_equal(actual.double().numpy(), torch.asarray(exact).to(dtype).double().numpy())


def test_the_sums_of_an_embedding_for_cuda_are_those_for_the_cpu(rng):
    ids, rows = torch.asarray(rng.integers(0, 7, size=(5, 40))), torch.asarray(rng.integers(-3, 4, size=(5, 40, 3))).float()
    torch.testing.assert_close(_sorted_sums(rows, ids, 7), mha.vjp(mha.embedding, ids, torch.zeros(7, 3))[1](rows)[1])
    assert _sorted_sums(rows[:0], ids[:0], 7).shape == (7, 3)


@pytest.mark.skipif(not hasattr(torch.ops.mkldnn, "_linear_pointwise"), reason="this torch lacks oneDNN's linear map")
@pytest.mark.parametrize("batch", [(300,), (3, 100), (2, 3, 50)], ids=str)
def test_the_gradients_of_a_linear_map_by_onednn(rng, batch):
    x, w, d = (torch.asarray(rng.normal(size=shape)).float() for shape in ((*batch, 96), (96, 160), (*batch, 160)))
    actual = onednn.linear_vjp(x, w, torch.zeros(160), d, wanted={"x", "w", "b"})
    exact = (d @ w.mT, x.reshape(-1, 96).mT @ d.reshape(-1, 160), d.reshape(-1, 160).sum(0))
    for a, b in zip(actual, exact, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
    assert onednn.linear_vjp(x, w, None, d, wanted={"w"})[::2] == (None, None)


def test_adamw_is_refused_where_torch_rounds_its_rates():
    def supports(dtype, device, *, size=3):
        return updates.supports(Call("adamw", (("w", (size,)),), dtype, torch.device(device)))

    assert "rounds beta_2 to float32 on cuda" in supports(torch.float32, "cuda")
    assert supports(torch.float64, "cuda") is supports(torch.float32, "cpu") is None
    assert supports(torch.float64, "cuda", size=0) == "does not support empty axes"


@pytest.mark.parametrize("scale", [1.0, 0.5, torch.tensor(0.5)], ids=["1", "number", "tensor"])
def test_adamw_writes_into_moments_only(rng, scale):
    w, gradient = (torch.asarray(rng.normal(size=(40, 7))).float() for _ in range(2))
    settings = {"learning_rate": 0.1, "beta_1": 0.9, "beta_2": 0.99, "eps": 1e-8, "weight_decay": 0.1, "step": 4}
    results = {}
    for kernel in ("fused", "algebra"):
        arrays = [w.clone(), gradient.clone(), gradient / 3, gradient.square() / 5]
        with mha.use_kernel("adamw", kernel):
            results[kernel] = adamw(*arrays, **settings, gradient_scale=scale)
        assert torch.equal(arrays[0], w) and torch.equal(arrays[1], gradient)
    for a, b in zip(results["fused"], results["algebra"], strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-7)
