"""Gradients of attention on torch: the kernels of ``attention_vjp`` and the kernel ``recompute``, against autograd's."""

import math

import pytest
import torch
from torch_options import OPTIONS, B, H, L, S, seeded, tensor

import mha_core as mha
from mha_torch import blocks_vjp, onednn

D = 6
CASES = OPTIONS | {
    "softcap": lambda t: {"softcap": 1.5},
    "negative scale": lambda t: {"scale": -0.5, "mask": mha.causal(), "query_offset": 0},
    "alibi everywhere": lambda t: {"bias": mha.alibi(H), "query_offset": 2},
    "bias of keys": lambda t: {"bias": t(seeded(1, 1, S))},
    "relative bias": lambda t: {"bias": relative(t), "query_offset": 1, "softcap": 2.0},
    "relative bias and lengths": lambda t: {
        "bias": relative(t),
        "mask": mha.key_lengths(t([5, 0])) & mha.causal(),
        "query_offset": 0,
    },
}
each_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES)
KERNELS = ("sdpa", "blocks", "algebra")


def relative(t):
    return mha.relative_bias(t(seeded(8, H)), bidirectional=True, max_distance=6)


def arrays(*, key_heads=2, value_dim=D):
    return [seeded(*shape) for shape in ((B, H, L, D), (B, key_heads, S, D), (B, key_heads, S, value_dim))]


def made_of(case, *, learned=False):
    """Return the options of a case, and the floating arrays in them, which record gradients if they are ``learned``."""
    floating = []

    def make(x):
        x = tensor(x)
        floating.extend([x.requires_grad_(learned)] if x.is_floating_point() else [])
        return x

    return case(make), floating


def by_autograd(kernel, case, given, d_out, d_lse, of="both"):
    """Return the gradients of query, key, value and the arrays of the options, which torch records in a kernel."""
    options, learned = made_of(case, learned=True)
    inputs = [x.detach().requires_grad_() for x in given]
    with mha.use_kernel("attention", kernel):
        state = mha.attention_state(*inputs, **options)
    results = {"out": (state.out, d_out), "lse": (torch.where(state.lse == -math.inf, 0, state.lse), d_lse)}
    ys, towards = zip(*(pair for name, pair in results.items() if of in (name, "both")), strict=True)
    return torch.autograd.grad(ys, inputs + learned, towards, allow_unused=True, materialize_grads=True)


@each_case
@pytest.mark.parametrize("form", [{}, {"key_heads": H}, {"value_dim": 3}, {"value_dim": 11}], ids=str)
@pytest.mark.parametrize("kernel", KERNELS)
def test_kernels_of_attention_vjp_equal_the_gradients_of_the_algebra(case, form, kernel):
    given, (options, floating) = arrays(**form), made_of(case)
    d = seeded(B, H, L, given[2].shape[-1]), seeded(B, H, L)
    with mha.use_kernel("attention_vjp", kernel):
        _, pullback = mha.vjp(mha.attention_state, *given, **options)
        if kernel == "sdpa" and ("softcap" in options or (floating and "sink" not in options)):
            with pytest.raises(mha.KernelUnsupported, match="does not handle"):
                pullback(mha.AttentionState(*d))
            return
        gradients = pullback(mha.AttentionState(*d))
    results = [*gradients, *(getattr(x, "table", x) for x in gradients.options.values() if x is not None)]
    for actual, exact in zip(results, by_autograd("algebra", case, given, *d), strict=True):
        torch.testing.assert_close(actual, exact, rtol=0, atol=2e-14)


@each_case
@pytest.mark.parametrize("of", ["out", "lse", "both"])
def test_torch_differentiates_by_our_rule(case, of):
    given, d = arrays(value_dim=5), (seeded(B, H, L, 5), seeded(B, H, L))
    explanation = mha.explain("attention_state", *(x.clone().requires_grad_() for x in given), **made_of(case)[0])
    assert explanation.kernel == "recompute" and {"gradient", "lse"} <= explanation.features
    result, expected = (by_autograd(kernel, case, given, *d, of) for kernel in ("recompute", "algebra"))
    for actual, exact in zip(result, expected, strict=True):
        torch.testing.assert_close(actual, exact, rtol=0, atol=2e-14)


@pytest.mark.parametrize("name", [name for name in OPTIONS if name != "sink"])
def test_torch_differentiates_sdpa_itself(name):
    def gradients(kernel):
        options, learned = made_of(OPTIONS[name], learned=True)
        inputs = [x.requires_grad_() for x in arrays()]
        with mha.use_kernel("attention", kernel):
            out = mha.scaled_dot_product_attention(*inputs, **options)
        return torch.autograd.grad(out, inputs + learned, seeded(B, H, L, D))

    torch.testing.assert_close(gradients("sdpa"), gradients("algebra"), rtol=0, atol=2e-14)


def test_a_gradient_through_unseen_keys_and_blind_rows_is_exactly_zero():
    query, key, value = arrays(key_heads=H)
    key[:, :, 7:], value[:, :, 7:] = math.nan, math.inf
    mask = (torch.arange(S) < 7) & (torch.arange(L) != 2)[:, None]
    for kernel in KERNELS:
        for sink in ({}, {"sink": seeded(H)}):
            d_out = seeded(B, H, L, D)
            d_out[:, :, 2] = math.nan
            with mha.use_kernel("attention_vjp", kernel):
                gradients = mha.vjp(mha.scaled_dot_product_attention, query, key, value, mask=mask, **sink)[1](d_out)
            assert all(x.isfinite().all() for x in gradients)
            assert not gradients[0][:, :, 2].any()
            assert not any(x[:, :, 7:].any() for x in gradients[1:])


def test_without_a_gradient_recompute_is_refused():
    with (
        torch.no_grad(),
        mha.use_kernel("attention", "recompute"),
        pytest.raises(mha.KernelUnsupported, match="is for calls that record a gradient"),
    ):
        mha.attention_state(*arrays())


def test_plain_attention_keeps_the_kernel_whose_gradient_torch_has():
    inputs = [x.requires_grad_() for x in arrays(key_heads=H)]
    for options in ({}, {"mask": mha.causal(), "query_offset": 0}):
        assert mha.explain("attention", *inputs, **options).kernel == "sdpa"
        with (
            mha.use_kernel("attention", "recompute"),
            pytest.raises(mha.KernelUnsupported, match="what the kernel 'sdpa' does"),
        ):
            mha.scaled_dot_product_attention(*inputs, **options)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("kernel", ["sdpa", "blocks"])
def test_half_precision_is_computed_in_float32_and_rounded_once(dtype, kernel):
    given = [x.to(dtype) for x in arrays()]
    d_out = seeded(B, H, L, D).to(dtype)
    with mha.use_kernel("attention_vjp", kernel):
        _, pullback = mha.vjp(mha.scaled_dot_product_attention, *given, mask=mha.window(3, 3), query_offset=0)
        result = pullback(d_out)
        wide = mha.vjp(mha.attention_state, *(x.float() for x in given), mask=mha.window(3, 3), query_offset=0)[1](
            mha.AttentionState(d_out.float(), None)
        )
    for actual, exact in zip(result, wide, strict=True):
        assert actual.dtype == dtype
        torch.testing.assert_close(actual.float(), exact, rtol=0, atol=8 * torch.finfo(dtype).eps)


def test_blocks_use_onednn_where_it_is_faster(monkeypatch):
    monkeypatch.setattr(onednn, "_is_faster", lambda: True)
    monkeypatch.setattr(blocks_vjp, "is_twice_as_fast", lambda: True)
    given = [torch.randn(1, 2, 600, 32, generator=torch.Generator().manual_seed(at)) for at in range(4)]
    for mask, kernel in ((mha.causal(), "onednn"), (mha.window(9, 0), "sdpa")):
        results = {}
        for name in (kernel, "algebra"):
            with mha.use_kernel("attention_vjp", name):
                results[name] = mha.vjp(mha.scaled_dot_product_attention, *given[:3], mask=mask)[1](given[3])
        torch.testing.assert_close(results[kernel], results["algebra"], rtol=1e-5, atol=1e-5)
    with mha.use_kernel("attention_vjp", "onednn"), pytest.raises(mha.KernelUnsupported, match="needs a band of at least"):
        mha.vjp(mha.scaled_dot_product_attention, *given[:3], mask=mha.window(9, 0))[1](given[3])


def test_the_fused_kernel_goes_first_where_onednn_is_little_faster(monkeypatch):
    monkeypatch.setattr(onednn, "_is_faster", lambda: True)
    monkeypatch.setattr(blocks_vjp, "is_twice_as_fast", lambda: False)
    x = torch.ones(1, 2, 600, 32)
    with mha.use_kernel("attention_vjp", "onednn"), pytest.raises(mha.KernelUnsupported, match="twice as fast as MKL's"):
        mha.vjp(mha.scaled_dot_product_attention, x, x, x)[1](x)
