"""The compiled gradients of attention: what conformance does not test of them."""

import numpy as np
import pytest
import torch
from judged_attention import normal
from native import needs_native

import mha_core as mha

pytestmark = [needs_native, pytest.mark.usefixtures("native")]
ARGUMENTS = ("query", "key", "value")


def gradients(kernel, arrays, d_out, wrt=None, **options):
    """Return the gradients of query, key and value by a kernel."""
    with mha.use_kernel("attention_vjp", kernel):
        _, pullback = mha.vjp(mha.scaled_dot_product_attention, *arrays, wrt=wrt, **options)
        return pullback(d_out)


LONG = {
    "one head, so keys are cut into parts": ((1, 1, 130, 24), 1500, {}),
    "parts with a window": ((1, 2, 1500, 16), 1500, {"mask": mha.window(300, 40)}),
    "parts with lengths": ((2, 1, 90, 16), 1200, {"mask": mha.key_lengths(np.asarray([1000, 0]))}),
    "packed": ((1, 2, 700, 16), 700, {"mask": mha.packed([300, 1, 0, 399]) & mha.causal()}),
    "few queries of grouped heads": ((1, 6, 5, 16), 600, {"softcap": 3.0}),
    "a bias that is not wanted": ((1, 2, 100, 16), 100, {"bias": mha.alibi(2)}),
}


@pytest.mark.parametrize("name", LONG)
def test_long_problems_equal_the_algebra_in_float64(rng, name):
    shape, keys, options = LONG[name]
    heads = 2 if "grouped" in name else shape[1]
    query, d_out = normal(rng, *shape, dtype=float), normal(rng, *shape, dtype=float)
    key, value = (normal(rng, shape[0], heads, keys, shape[3], dtype=float) for _ in range(2))
    native, expected = (gradients(kernel, (query, key, value), d_out, **options) for kernel in ("native", "algebra"))
    for x, y in zip(native, expected, strict=True):
        np.testing.assert_allclose(x, y, rtol=0, atol=1e-13)


@pytest.mark.parametrize("wanted", [("query",), ("key",), ("value",), ("query", "value"), ("key", "value")])
def test_some_gradients_are_the_same_as_beside_the_others(rng, wanted):
    arrays, d_out = [normal(rng, 2, 2, 70, 20) for _ in range(3)], normal(rng, 2, 2, 70, 20)
    every = dict(zip(ARGUMENTS, gradients("native", arrays, d_out), strict=True))
    subset = dict(zip(ARGUMENTS, gradients("native", arrays, d_out, wrt=lambda name: name in wanted), strict=True))
    for name in ARGUMENTS:
        assert (subset[name] is None) == (name not in wanted)
        assert subset[name] is None or np.array_equal(subset[name], every[name])


def test_torch_s_autograd_uses_it_and_can_be_differentiated_again(rng):
    arrays = [torch.from_numpy(normal(rng, 1, 2, 9, 8, dtype=float)).requires_grad_() for _ in range(3)]
    with mha.use_kernel("attention_vjp", "native"):  # refuses a call that it cannot compute
        mha.scaled_dot_product_attention(*arrays, softcap=2.0).sum().backward()
    computed = [x.grad.clone() for x in arrays]
    expected = gradients("algebra", [x.detach() for x in arrays], torch.ones(1, 2, 9, 8, dtype=torch.float64), softcap=2.0)
    for x, y in zip(computed, expected, strict=True):
        torch.testing.assert_close(x, y, rtol=0, atol=1e-13)
    attention = lambda *x: mha.scaled_dot_product_attention(*x, softcap=2.0)  # noqa: E731
    few = [x.detach()[:, :1, :3, :2].requires_grad_() for x in arrays]  # each number is changed in turn
    assert torch.autograd.gradgradcheck(attention, few)


@pytest.mark.parametrize("dtype", [np.float16, "bfloat16"])
def test_half_precision_is_summed_in_float32(rng, dtype):
    import ml_dtypes  # noqa: F401  # NumPy knows bfloat16 then

    wide = [normal(rng, 1, 2, 300, 16) for _ in range(4)]
    half = [x.astype(dtype) for x in wide]
    native = gradients("native", half[:3], half[3])
    expected = gradients("algebra", [x.astype(np.float64) for x in half[:3]], half[3].astype(np.float64))
    unit = 2.0**-11 if dtype is np.float16 else 2.0**-8
    for x, y in zip(native, expected, strict=True):
        assert x.dtype == half[0].dtype
        assert np.abs(x.astype(np.float64) - y).max() <= 4 * unit * np.abs(y).max()
