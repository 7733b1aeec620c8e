"""Gradients of attention on torch: the kernels of ``attention_vjp`` and the kernel ``recompute``, against the dense formula."""

import math

import pytest
import torch

import mha_core as mha
from mha_torch import onednn

B, H, L, S, D = 2, 4, 9, 13, 6


def t(*shape):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(sum(shape)))


def visible(low=None, high=None, offset=0):
    distance = torch.arange(S) - torch.arange(L)[:, None] - offset
    return (distance >= (-S if low is None else low)) & (distance <= (S if high is None else high))


LENGTHS = torch.tensor([5, 0])
OF_LENGTHS = (torch.arange(S) < LENGTHS[:, None])[:, None, None]
TABLE, BIAS, SINK = t(8, H), t(H, L, S), t(H)
ARRAY = t(B, 1, L, S) > 0


def relative(table, offset):
    bias = mha.relative_bias(table, bidirectional=True, max_distance=6)
    distance = torch.arange(S) - torch.arange(L)[:, None] - offset
    buckets = distance.clone().apply_(lambda each: bias.bucket(max(-6, min(6, each))))
    return bias, table[buckets].permute(2, 0, 1)


def alibi(offset):
    slopes = torch.tensor(mha.alibi(H).slopes, dtype=torch.float64)[:, None, None]
    return -slopes * (torch.arange(S) - torch.arange(L)[:, None] - offset).abs()


# the options of a call, and those of the dense formula; "bias" and "sink" of the former may have a gradient
CASES = {
    "plain": (dict, lambda bias: {}),
    "causal at the start": (lambda: {"mask": mha.causal(), "query_offset": 0}, lambda bias: {"mask": visible(high=0)}),
    "causal at the end": (lambda: {"mask": mha.causal(), "query_offset": 4}, lambda bias: {"mask": visible(high=0, offset=4)}),
    "causal before": (lambda: {"mask": mha.causal(), "query_offset": -3}, lambda bias: {"mask": visible(high=0, offset=-3)}),
    "window": (lambda: {"mask": mha.window(2, 1), "query_offset": 1}, lambda bias: {"mask": visible(-2, 1, 1)}),
    "lengths": (lambda: {"mask": mha.key_lengths(LENGTHS)}, lambda bias: {"mask": OF_LENGTHS}),
    "lengths and causal": (
        lambda: {"mask": mha.key_lengths(LENGTHS) & mha.causal(), "query_offset": 0},
        lambda bias: {"mask": OF_LENGTHS & visible(high=0)},
    ),
    "array mask": (lambda: {"mask": ARRAY}, lambda bias: {"mask": ARRAY}),
    "softcap": (lambda: {"softcap": 1.5}, lambda bias: {"softcap": 1.5}),
    "negative scale": (
        lambda: {"scale": -0.5, "mask": mha.causal(), "query_offset": 0},
        lambda bias: {"scale": -0.5, "mask": visible(high=0)},
    ),
    "sink": (
        lambda: {"sink": SINK, "mask": mha.window(1, 0), "query_offset": -2},
        lambda bias: {"mask": visible(-1, 0, -2)},
    ),
    "alibi": (lambda: {"bias": mha.alibi(H), "query_offset": 2}, lambda bias: {"bias": alibi(2)}),
    "alibi and causal": (
        lambda: {"bias": mha.alibi(H), "mask": mha.causal(), "query_offset": 0},
        lambda bias: {"bias": alibi(0), "mask": visible(high=0)},
    ),
    "array bias": (lambda: {"bias": BIAS}, lambda bias: {"bias": bias}),
    "bias of keys": (lambda: {"bias": BIAS[:1, :1]}, lambda bias: {"bias": bias}),
    "relative bias": (
        lambda: {"bias": relative(TABLE, 1)[0], "query_offset": 1, "softcap": 2.0},
        lambda bias: {"bias": relative(bias, 1)[1], "softcap": 2.0},
    ),
    "relative bias and lengths": (
        lambda: {"bias": relative(TABLE, 0)[0], "mask": mha.key_lengths(LENGTHS) & mha.causal(), "query_offset": 0},
        lambda bias: {"bias": relative(bias, 0)[1], "mask": OF_LENGTHS & visible(high=0)},
    ),
}
each_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES)
KERNELS = ("sdpa", "blocks", "algebra")


def dense(query, key, value, *, mask=True, bias=None, softcap=None, sink=None, scale=None):
    """Return (out, lse) by the formula, for torch to differentiate."""
    groups = query.shape[-3] // key.shape[-3]
    key, value = (x.repeat_interleave(groups, dim=-3) for x in (key, value))
    s = query @ key.mT * (scale or 1 / math.sqrt(query.shape[-1]))
    s = s if softcap is None else softcap * torch.tanh(s / softcap)
    s = s if bias is None else s + bias
    s = torch.where(torch.as_tensor(mask), s, -math.inf)
    if sink is not None:
        s = torch.cat([s, sink[:, None, None].expand(*s.shape[:-1], 1)], dim=-1)
    empty = (s == -math.inf).all(-1, keepdim=True)
    lse = torch.logsumexp(torch.where(empty, 0, s), dim=-1, keepdim=True)
    w = torch.exp(s - lse)[..., : key.shape[-2]]
    return torch.where(empty, 0, w @ value), torch.where(empty, -math.inf, lse)[..., 0]


def arrays(*, key_heads=2, value_dim=D):
    shapes = (B, H, L, D), (B, key_heads, S, D), (B, key_heads, S, value_dim)
    return [t(*shape) for shape in shapes]


def leaf(options):
    """Return the array of a bias with a gradient, and the sink; None where there is none."""
    bias = options.get("bias")
    return (bias if isinstance(bias, torch.Tensor) else getattr(bias, "table", None)), options.get("sink")


def expected_gradients(given, options, formula, d_out, d_lse):
    inputs = [x.detach().requires_grad_() for x in given]
    bias, sink = (None if x is None else x.detach().clone().requires_grad_() for x in leaf(options))
    out, lse = dense(*inputs, sink=sink, **formula(bias))
    d_lse = torch.where(lse == -math.inf, 0, d_lse)
    every = inputs + [x for x in (bias, sink) if x is not None]
    return torch.autograd.grad([out, torch.where(lse == -math.inf, 0, lse)], every, [d_out, d_lse], allow_unused=True)


@each_case
@pytest.mark.parametrize("form", [{}, {"key_heads": H}, {"value_dim": 3}, {"value_dim": 11}], ids=str)
@pytest.mark.parametrize("kernel", KERNELS)
def test_kernels_of_attention_vjp_equal_the_dense_formula(case, form, kernel):
    options, formula = case[0](), case[1]
    given = arrays(**form)
    d_out, d_lse = t(B, H, L, given[2].shape[-1]), t(B, H, L)
    expected = expected_gradients(given, options, formula, d_out, d_lse)
    with mha.use_kernel("attention_vjp", kernel):
        _, pullback = mha.vjp(mha.attention_state, *given, **options)
        if kernel == "sdpa" and ("softcap" in options or leaf(options)[0] is not None):
            with pytest.raises(mha.KernelUnsupported, match="does not handle"):
                pullback(mha.AttentionState(d_out, d_lse))
            return
        gradients = pullback(mha.AttentionState(d_out, d_lse))
    found = [*gradients, *(getattr(x, "table", x) for x in gradients.options.values() if x is not None)]
    for actual, exact in zip(found, expected, strict=True):
        torch.testing.assert_close(actual, exact, rtol=0, atol=2e-14)


@each_case
@pytest.mark.parametrize("of", ["out", "lse", "both"])
def test_torch_differentiates_by_our_rule(case, of):
    options, formula = case[0](), case[1]
    given = arrays(value_dim=5)
    d_out, d_lse = t(B, H, L, 5) * (of != "lse"), t(B, H, L) * (of != "out")
    expected = expected_gradients(given, options, formula, d_out, d_lse)
    inputs = [x.requires_grad_() for x in given]
    learned = [x.detach().requires_grad_() for x in leaf(options) if x is not None]
    options = with_leaves(options, iter(learned))
    explanation = mha.explain("attention_state", *inputs, **options)
    assert explanation.kernel == "recompute" and {"gradient", "lse"} <= explanation.features
    state = mha.attention_state(*inputs, **options)
    pairs = [(y, d) for name, y, d in (("out", state.out, d_out), ("lse", state.lse, d_lse)) if of in (name, "both")]
    results, towards = zip(*pairs, strict=True)
    found = torch.autograd.grad(results, inputs + learned, towards, materialize_grads=True)
    for actual, exact in zip(found, expected, strict=True):
        torch.testing.assert_close(actual, torch.zeros_like(actual) if exact is None else exact, rtol=0, atol=2e-14)


def with_leaves(options, learned):
    """Return options whose bias and sink hold the next arrays of ``learned``."""
    bias, sink = leaf(options)
    if bias is not None:
        of_bias = next(learned)
        is_table = options["bias"] is not bias
        made = mha.relative_bias(of_bias, bidirectional=True, max_distance=6) if is_table else of_bias
        options = options | {"bias": made}
    return options | ({"sink": next(learned)} if sink is not None else {})


def test_a_gradient_through_unseen_keys_and_blind_rows_is_exactly_zero():
    query, key, value = arrays(key_heads=H)
    key[:, :, 7:], value[:, :, 7:] = math.nan, math.inf
    mask = (torch.arange(S) < 7) & (torch.arange(L) != 2)[:, None]
    for kernel in KERNELS:
        for sink in ({}, {"sink": SINK}):
            d_out = t(B, H, L, D)
            d_out[:, :, 2] = math.nan
            with mha.use_kernel("attention_vjp", kernel):
                gradients = mha.vjp(mha.scaled_dot_product_attention, query, key, value, mask=mask, **sink)[1](d_out)
            assert all(x.isfinite().all() for x in gradients)
            assert not gradients[0][:, :, 2].any()
            assert not any(x[:, :, 7:].any() for x in gradients[1:])


@pytest.mark.parametrize("kernel", ["sdpa", "recompute", "algebra"])
def test_demands_are_followed(kernel):
    inputs = [x.requires_grad_() for x in arrays()]
    options = {"mask": mha.window(2, 1), "query_offset": 0}
    with mha.use_kernel("attention", kernel):
        found = mha.explain("attention", *inputs, **options).kernel
        assert found == (None if kernel == "algebra" else kernel)
        mha.scaled_dot_product_attention(*inputs, **options).sum().backward()


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
    d_out = t(B, H, L, D).to(dtype)
    with mha.use_kernel("attention_vjp", kernel):
        _, pullback = mha.vjp(mha.scaled_dot_product_attention, *given, mask=mha.window(3, 3), query_offset=0)
        found = pullback(d_out)
        wide = mha.vjp(mha.attention_state, *(x.float() for x in given), mask=mha.window(3, 3), query_offset=0)[1](
            mha.AttentionState(d_out.float(), None)
        )
    for actual, exact in zip(found, wide, strict=True):
        assert actual.dtype == dtype
        torch.testing.assert_close(actual.float(), exact, rtol=0, atol=8 * torch.finfo(dtype).eps)


def test_blocks_use_onednn_where_it_is_faster(monkeypatch):
    monkeypatch.setattr(onednn, "_is_faster", lambda: True)
    given = [torch.randn(1, 2, 600, 32, generator=torch.Generator().manual_seed(at)) for at in range(4)]
    for mask, kernel in ((mha.causal(), "onednn"), (mha.window(9, 0), "sdpa")):
        found = {}
        for name in (kernel, "algebra"):
            with mha.use_kernel("attention_vjp", name):
                found[name] = mha.vjp(mha.scaled_dot_product_attention, *given[:3], mask=mask)[1](given[3])
        torch.testing.assert_close(found[kernel], found["algebra"], rtol=1e-5, atol=1e-5)
    with mha.use_kernel("attention_vjp", "onednn"), pytest.raises(mha.KernelUnsupported, match="needs a band of at least"):
        mha.vjp(mha.scaled_dot_product_attention, *given[:3], mask=mha.window(9, 0))[1](given[3])
