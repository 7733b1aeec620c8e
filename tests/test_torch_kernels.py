"""torch's kernels: chosen by structure, right with every option, and refused wherever a promise would break."""

import math
import subprocess
import sys
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch

import mha_core as mha
from mha_core.conformance import oracle
from mha_core.conformance.problems import random_problem
from mha_core.ops.prepare import prepare
from mha_core.plugin import Call
from mha_torch import sdpa, varlen

B, H, L, S, D = 2, 4, 9, 13, 8


@pytest.fixture
def qkv(rng):
    def make(dtype=torch.float64, *, keys=S, key_heads=H, value_dim=D, grad=False):
        shapes = (B, H, L, D), (B, key_heads, keys, D), (B, key_heads, keys, value_dim)
        arrays = (torch.asarray(rng.normal(size=shape)).to(dtype) for shape in shapes)
        return tuple(x.requires_grad_(grad) for x in arrays)

    return make


OPTIONS = {
    "nothing": lambda t: {},
    "causal at the start": lambda t: {"mask": mha.causal(), "query_offset": 0},
    "causal at the end": lambda t: {"mask": mha.causal(), "query_offset": S - L},
    "causal before the keys": lambda t: {"mask": mha.causal(), "query_offset": -3},
    "window": lambda t: {"mask": mha.window(2, 1), "query_offset": 1},
    "window of the past": lambda t: {"mask": mha.window(3, 0), "query_offset": S - L},
    "chunks": lambda t: {"mask": mha.chunks(4), "query_offset": 2},
    "lengths": lambda t: {"mask": mha.key_lengths(t([5, 13]))},
    "lengths and causal": lambda t: {"mask": mha.key_lengths(t([5, 13])) & mha.causal(), "query_offset": 0},
    "no key for one": lambda t: {"mask": mha.key_lengths(t([0, 7]))},
    "array": lambda t: {"mask": t(np.random.default_rng(1).random((B, 1, L, S)) < 0.4)},
    "array of heads": lambda t: {"mask": t(np.random.default_rng(2).random((H, L, S)) < 0.4)},
    "bias": lambda t: {"bias": t(np.random.default_rng(3).normal(size=(H, L, S)))},
    "bias of rows": lambda t: {"bias": t(np.random.default_rng(3).normal(size=(L, 1))), "mask": mha.prefix(11)},
    "bias of -inf": lambda t: {"bias": t(np.where(np.arange(L) == 2, -np.inf, 0.0)[:, None] + np.zeros((L, S)))},
    "alibi": lambda t: {"bias": mha.alibi(H), "mask": mha.causal(), "query_offset": S - L},
    "sink": lambda t: {"sink": t(np.linspace(-1, 2, H)), "mask": mha.window(1, 0), "query_offset": -2},
    "scale": lambda t: {"scale": 0.7},
}
each_option = pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
DTYPES = {"float64": torch.float64, "float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


def like(x):
    return lambda array: (
        torch.asarray(array).to(x.dtype) if np.asarray(array).dtype.kind == "f" else torch.asarray(np.asarray(array))
    )


@each_option
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("form", ["plain", "grouped", "wide values", "narrow values"])
def test_sdpa_is_chosen_and_is_the_algebra(qkv, options, dtype, form):
    settings = {"grouped": {"key_heads": 2}, "wide values": {"value_dim": 11}, "narrow values": {"value_dim": 3}}
    query, key, value = qkv(dtype, **settings.get(form, {}))
    given = options(like(query))
    for attend in (mha.attention_state, mha.scaled_dot_product_attention):
        assert mha.explain(attend, query, key, value, **given).kernel == "sdpa"
        with mha.verify() as done:  # within the bounds of algebra/rounding.py
            result = attend(query, key, value, **given)
        assert done.checked == {("attention", "sdpa"): 1}
        out = result.out if attend is mha.attention_state else result
        assert out.dtype == dtype
        assert not out.isnan().any()


@pytest.mark.parametrize("number", range(60))
def test_random_problems_with_poison_are_the_oracle(rng, number):
    problem = random_problem(rng)
    key, value = problem.poisoned()
    options = problem.options(torch.asarray)
    out, lse, _ = oracle.attention(problem.query, problem.key, problem.value, **problem.oracle)
    state = mha.attention_state(*map(torch.asarray, (problem.query, key, value)), **options)
    np.testing.assert_allclose(state.out.numpy(), out, rtol=0, atol=1e-12)
    np.testing.assert_allclose(state.lse.numpy(), lse, rtol=0, atol=1e-12)


def test_grouped_heads_are_contiguous_groups(qkv):
    query, key, value = qkv(key_heads=2)
    repeated = (x.repeat_interleave(2, dim=1) for x in (key, value))
    torch.testing.assert_close(
        mha.scaled_dot_product_attention(query, key, value), mha.scaled_dot_product_attention(query, *repeated)
    )


FLAGS = ["nothing", "causal at the start", "causal at the end", "scale"]


@pytest.mark.parametrize("name", FLAGS)
def test_what_a_flag_says_is_not_said_by_a_mask(qkv, monkeypatch, name):
    asked = []
    monkeypatch.setattr(sdpa, "_mask", lambda *args: asked.append(args))
    mha.attention_state(*qkv(), **OPTIONS[name](torch.asarray))
    assert not asked


def test_packed_sequences_are_views_without_masks(qkv, monkeypatch):
    query, key, value = qkv(keys=L)
    lengths = [2, 2, 0, 1, 4]
    expected = mha.attention_state(query, key, value, mask=mha.packed(lengths) & (torch.ones(L, L) == 1) & mha.causal())
    asked = []
    monkeypatch.setattr(sdpa, "_mask", lambda *args: asked.append(args))
    state = mha.attention_state(query, key, value, mask=mha.packed(lengths) & mha.causal())
    assert not asked
    torch.testing.assert_close(state.out, expected.out)
    torch.testing.assert_close(state.lse, expected.lse)


def test_long_masks_are_cut_into_blocks_of_queries(rng, monkeypatch):
    query, key, value = (torch.asarray(rng.normal(size=(1, 2, 300, 4))) for _ in range(3))
    mask = torch.asarray(rng.random((2, 300, 300)) < 0.1)
    with mha.use_kernel("attention", "algebra"):
        expected = mha.attention_state(query, key, value, mask=mask & mha.window(40, 10))
    monkeypatch.setattr(sdpa, "_MASK", 1 << 12)
    sizes = []
    numbers = sdpa._mask
    monkeypatch.setattr(sdpa, "_mask", lambda *args: sizes.append(numbers(*args)) or sizes[-1])
    state = mha.attention_state(query, key, value, mask=mask & mha.window(40, 10))
    assert len(sizes) > 5
    assert max(x.numel() for x in sizes) <= 2 * 16 * 300
    torch.testing.assert_close(state.out, expected.out)
    torch.testing.assert_close(state.lse, expected.lse)


# gradients


@each_option
def test_gradients_are_those_of_the_algebra(qkv, options):
    given = options(torch.asarray)
    query, key, value = qkv(grad=True, key_heads=2)
    weight = torch.linspace(-1, 1, D, dtype=torch.float64)

    def gradients():
        out = mha.scaled_dot_product_attention(query, key, value, **given)
        return torch.autograd.grad((out * weight).sum(), (query, key, value))

    kernel = mha.explain("attention", query, key, value, **given).kernel
    assert kernel == (None if "sink" in given else "sdpa")
    actual = gradients()
    with mha.use_kernel("attention", "algebra"):
        expected = gradients()
    for a, e in zip(actual, expected, strict=True):
        assert a.isfinite().all()
        torch.testing.assert_close(a, e)


def test_the_gradient_of_a_bias_is_recorded(qkv):
    query, key, value = qkv()
    bias = torch.zeros(H, L, S, dtype=torch.float64, requires_grad=True)
    explanation = mha.explain("attention", query, key, value, bias=bias)
    assert "gradient" in explanation.features
    (actual,) = torch.autograd.grad(mha.scaled_dot_product_attention(query, key, value, bias=bias).square().sum(), bias)
    with mha.use_kernel("attention", "algebra"):
        (expected,) = torch.autograd.grad(mha.scaled_dot_product_attention(query, key, value, bias=bias).square().sum(), bias)
    torch.testing.assert_close(actual, expected)


def test_a_gradient_through_lse_is_left_to_the_algebra(qkv):
    query, key, value = qkv(grad=True)
    explanation = mha.explain("attention_state", query, key, value)
    assert explanation.kernel is None
    assert ("sdpa", "has a log-sum-exp without a gradient") in explanation.rejected
    halves = [mha.attention_state(query, key[..., s, :], value[..., s, :]) for s in (slice(0, 5), slice(5, S))]
    whole = mha.scaled_dot_product_attention(query, key, value)
    for x in (query, key, value):
        (actual,) = torch.autograd.grad(mha.merge_states(*halves).out.square().sum(), x, retain_graph=True)
        (expected,) = torch.autograd.grad(whole.square().sum(), x, retain_graph=True)
        torch.testing.assert_close(actual, expected)


def test_without_grad_mode_nothing_is_recorded(qkv):
    query, key, value = qkv(grad=True)
    with torch.no_grad():
        assert mha.explain("attention_state", query, key, value).features == {"lse"}
        assert not mha.scaled_dot_product_attention(query, key, value).requires_grad
    assert mha.scaled_dot_product_attention(query, key, value).requires_grad


def test_forward_gradients_are_left_to_the_algebra(qkv):
    query, key, value = qkv()

    def attend(x):
        return mha.scaled_dot_product_attention(x, key, value, mask=mha.causal(), query_offset=0)

    with warnings.catch_warnings():  # torch's own, of its own code
        warnings.filterwarnings("ignore", category=DeprecationWarning, message=r"`torch\.jit")
        _, actual = torch.func.jvp(attend, (query,), (torch.ones_like(query),))
    jacobian = torch.autograd.functional.jacobian(attend, query)
    torch.testing.assert_close(actual, jacobian.flatten(4).sum(-1))


THROUGH_VMAP = {
    "sink": lambda q, k: mha.scaled_dot_product_attention(q, k, k, sink=torch.ones(H, dtype=torch.float64)),
    "two pieces": lambda q, k: mha.scaled_dot_product_attention(q, k, k, mask=mha.causal(), query_offset=2),
    "lse": lambda q, k: mha.attention_state(q, k, k).lse,
    "packed": lambda q, k: mha.scaled_dot_product_attention(q, k[:, :L], k[:, :L], mask=mha.packed([4, 5])),
}


@pytest.mark.parametrize("attend", THROUGH_VMAP.values(), ids=THROUGH_VMAP)
def test_gradients_pass_through_vmap(qkv, attend):
    query, key, _ = qkv()
    query.requires_grad_()
    whole = torch.func.vmap(lambda q: attend(q, key[0]))(query).square().sum()
    one_by_one = torch.stack([attend(q, key[0]) for q in query]).square().sum()
    for actual, expected in zip(*(torch.autograd.grad(y, query) for y in (whole, one_by_one)), strict=True):
        torch.testing.assert_close(actual, expected)


def test_vmap_passes_through_multi_head_attention(rng):
    heads = mha.MultiHeadAttention.init(d_model=8, num_heads=2, seed=0, backend="torch")
    x = torch.asarray(rng.normal(size=(3, 5, 8)), dtype=torch.float32)
    torch.testing.assert_close(torch.func.vmap(heads)(x), heads(x))


def test_second_derivatives_are_the_algebras():
    x = torch.linspace(-1, 1, 12).reshape(1, 3, 4).requires_grad_()
    with mha.use_kernel("attention", "algebra"):
        (first,) = torch.autograd.grad(mha.scaled_dot_product_attention(x, x, x).square().sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    assert second.isfinite().all() and second.abs().max() > 0


def test_weights_lost_in_float16_are_no_divergence():
    query, key = torch.tensor([[[1.0, 0.0]]]), torch.zeros(1, 40, 2)
    key[0, 0, 0] = 17.5
    value = torch.full((1, 40, 2), 6e4)
    value[0, 0] = 0
    with mha.verify() as done:
        mha.scaled_dot_product_attention(query.half(), key.half(), value.half(), scale=1.0)
    assert done.checked == {("attention", "sdpa"): 1}


PEAK = """
import resource, sys
import torch, mha_core as mha
torch.set_num_threads(1)
def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
mask, bias = eval(sys.argv[1])
def run(length):
    x = torch.ones(2, length, 16)
    mha.scaled_dot_product_attention(x, x, x, mask=mask, bias=bias)
run(512)
before = peak()
run(8192)
print(peak() - before)
"""


@pytest.mark.parametrize("options", ["None, mha.alibi(2)", "mha.causal() | mha.prefix(10), None", "mha.chunks(3000), None"])
def test_long_masked_attention_takes_little_memory(options):
    done = subprocess.run([sys.executable, "-c", PEAK, options], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 128  # MB; the scores of the two heads would take 512


# other kernels

PIECES = {
    "linear": lambda x: mha.linear(x, torch.ones(D, 3, dtype=x.dtype) / 3, torch.ones(3, dtype=x.dtype)),
    "layer_norm": lambda x: mha.layer_norm(x, torch.linspace(1, 2, D, dtype=x.dtype), torch.ones(D, dtype=x.dtype)),
    "rms_norm": lambda x: mha.rms_norm(x, torch.linspace(1, 2, D, dtype=x.dtype)),
    "gelu": mha.gelu,
    "gelu tanh": lambda x: mha.gelu(x, approximate="tanh"),
    "silu": mha.silu,
    "relu": mha.relu,
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", PIECES)
def test_a_piece_is_fused_and_is_the_algebra(rng, dtype, name):
    x = torch.asarray(rng.normal(size=(5, 3, D)) * 4).to(dtype)
    for view in (x, x.mT.contiguous().mT, x[:, ::2], x[:0]):
        assert mha.explain(PIECES[name], view).kernel == "functional"
        with mha.verify() as done:
            y = PIECES[name](view)
        assert done.checked == {(name.partition(" ")[0], "functional"): 1}
        assert y.dtype == dtype


@pytest.mark.parametrize("name", PIECES)
def test_gradients_of_pieces_are_those_of_the_algebra(rng, name):
    op = name.partition(" ")[0]
    x = torch.asarray(rng.normal(size=(5, D)), dtype=torch.float32).requires_grad_()
    (actual,) = torch.autograd.grad(PIECES[name](x).square().sum(), x)
    with mha.use_kernel(op, "algebra"):
        (expected,) = torch.autograd.grad(PIECES[name](x).square().sum(), x)
    torch.testing.assert_close(actual, expected)


@pytest.mark.parametrize("activate", [mha.gelu, mha.silu, mha.relu])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_infinities_and_nan_pass_activations_as_in_the_algebra(activate, dtype):
    y = activate(torch.tensor([math.inf, -math.inf, math.nan], dtype=dtype))
    assert y[0] == math.inf
    assert y[1] == 0
    assert y[2].isnan()


SETTINGS = [{"activation": a, "norm_first": first} for a in ("relu", "gelu", "gelu_tanh", "silu") for first in (False, True)]


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_the_encoder_layer_is_one_kernel_and_is_the_algebra(rng, settings):
    layer = mha.EncoderLayer.init(d_model=16, num_heads=4, d_ff=24, seed=1, backend="torch", **settings)
    layer = layer.map(lambda w: w + torch.asarray(rng.normal(size=w.shape) * 0.1, dtype=torch.float32))
    x = torch.asarray(rng.normal(size=(2, 7, 16)), dtype=torch.float32)
    before = {name: array.clone() for name, array in {"x": x, **layer.arrays()}.items()}
    for options in ({}, {"mask": mha.causal()}, {"mask": mha.key_lengths(torch.tensor([3, 7])), "bias": mha.alibi(4)}):
        explanation = mha.explain(layer, x, **options)
        assert (explanation.op, explanation.kernel) == ("encoder_layer", "functional")
        with mha.verify() as done:
            layer(x, **options)
        assert done.checked == {("encoder_layer", "functional"): 1, ("attention", "sdpa"): 1}
    for name, array in {"x": x, **layer.arrays()}.items():
        assert torch.equal(array, before[name]), name


def refused():
    x = torch.ones(2, 8)
    layer = mha.EncoderLayer.init(d_model=8, num_heads=2, d_ff=8, seed=0, backend="torch")
    double = layer.map(lambda w: w.double())
    gated = mha.FeedForward.init(d_model=8, d_ff=8, gated=True, seed=0, backend="torch")
    turning = replace(layer.attention, rotary=mha.Rotary.init(max_length=4, dim=4, interleaved=True, backend="torch"))
    rms = mha.RMSNorm.init(d_model=8, backend="torch")
    keep = mha.Dropout(0.5, {"attention": torch.ones(2, 8) == 1})

    return {
        "rotary": (
            replace(layer, attention=turning),
            x,
            {},
            "does not handle attention.rotary.interleaved, attention.rotary=Rotary",
        ),
        "gate": (replace(layer, feed_forward=gated), x, {}, "does not handle feed_forward.b_g, feed_forward.w_g"),
        "rms norm": (replace(layer, norm_1=rms), x, {}, "does not handle norm_1=RMSNorm"),
        "dropout": (layer, x, {"dropout": keep}, "does not handle dropout"),
        "gradient": (layer, x.clone().requires_grad_(), {}, "does not handle gradient"),
        "gradient of a weight": (layer.map(lambda w: w.clone().requires_grad_()), x, {}, "does not handle gradient"),
        "float64": (double, x.double(), {}, "is for float32 and narrower"),
    }


@pytest.mark.parametrize("name", ["rotary", "gate", "rms norm", "dropout", "gradient", "gradient of a weight", "float64"])
def test_the_encoder_layer_kernel_refuses_what_it_does_not_know(name):
    layer, x, options, reason = refused()[name]
    explanation = mha.explain(layer, x, **options)
    assert explanation.kernel is None
    assert explanation.rejected == (("functional", reason),)
    assert len(list(explanation.walk())) > 8


class Doubling:
    """It has all that a layer norm has, and is none."""

    weight = bias = None
    eps = 1e-5

    def __call__(self, x):
        return 2 * x


def test_a_member_that_is_no_layer_of_ours_is_called_as_it_is(rng):
    layer = mha.EncoderLayer.init(d_model=8, num_heads=2, d_ff=8, seed=0, backend="torch")
    x = torch.asarray(rng.normal(size=(3, 8)), dtype=torch.float32)
    changed = replace(layer, norm_2=Doubling(), feed_forward=lambda y: y)
    found = mha.explain(changed, x)
    assert found.kernel is None
    assert "norm_2=test_torch_kernels.Doubling" in found.features
    y = layer.norm_1(x + layer.attention(x))
    torch.testing.assert_close(changed(x), 2 * (y + y))


def test_a_gradient_through_an_option_is_seen(rng):
    layer = mha.EncoderLayer.init(d_model=8, num_heads=2, d_ff=8, seed=0, backend="torch")
    x, bias = torch.ones(3, 8), torch.zeros(2, 3, 3, requires_grad=True)
    found = mha.explain(layer, x, bias=bias)
    assert "gradient" in found.features
    assert found.kernel is None
    (gradient,) = torch.autograd.grad(layer(x + torch.eye(3, 8), bias=bias).square().sum(), bias)
    assert gradient.abs().max() > 0


def test_a_sublayer_of_another_width_is_an_error():
    layer = mha.EncoderLayer.init(d_model=8, num_heads=2, d_ff=8, seed=0, backend="torch")
    narrow = replace(layer, attention=replace(layer.attention, w_o=torch.zeros(8, 1), b_o=None))
    with pytest.raises(ValueError, match="attention gives 1 features; expected 8"):
        narrow(torch.ones(3, 8))


def test_a_layer_that_does_not_fit_its_input_says_so_before_any_work():
    layer = mha.EncoderLayer.init(d_model=8, num_heads=2, d_ff=8, seed=0, backend="torch")
    with pytest.raises(ValueError, match=r"w_q has shape \(8, 8\); expected \(6, 2 \* d\)"):
        layer(torch.ones(3, 6))
    with pytest.raises(TypeError, match=r"has dtype torch\.float32, but x has torch\.float64"):
        layer(torch.ones(3, 8, dtype=torch.float64))


# varlen: CUDA's; here its refusals, and its shapes on torch's meta device


def test_varlen_is_chosen_by_name_only_and_refuses_the_cpu(qkv):
    query, key, value = (x[0] for x in qkv(torch.float16, keys=L))
    explanation = mha.explain("attention", query, key, value, mask=mha.packed([4, 5]), softcap=2.0)
    assert ("varlen", "is chosen only by use_kernel('attention', 'varlen')") in explanation.rejected
    with mha.use_kernel("attention", "varlen"), pytest.raises(mha.KernelUnsupported, match="it runs on CUDA, not on cpu"):
        mha.scaled_dot_product_attention(query, key, value, mask=mha.packed([4, 5]))


def test_varlen_gives_the_shapes_of_attention_on_the_meta_device():
    query, key, value = (torch.empty(heads, 9, 16, dtype=torch.float16, device="meta") for heads in (4, 2, 2))
    _, problem = prepare(query, key, value, mask=mha.packed([4, 5]) & mha.causal())
    out = varlen.attention(problem).out
    assert (out.shape, out.dtype) == ((4, 9, 16), torch.float16)
    query, key, value = (torch.empty(2, 4, length, 16, dtype=torch.float16, device="meta") for length in (3, 9, 9))
    _, problem = prepare(query, key, value, mask=mha.key_lengths(torch.empty(2, dtype=torch.int64, device="meta")))
    out = varlen.attention(problem).out
    assert (out.shape, out.dtype) == ((2, 4, 3, 16), torch.float16)


VARLEN = {
    "is for packed sequences, or else for key lengths": (frozenset(), (2, 4, 9, 16)),
    "takes packed sequences without batch axes: they are the batch": (frozenset({"packed"}), (2, 4, 9, 16)),
    "takes key lengths with one batch axis, not with 0": (frozenset({"key_lengths"}), (4, 9, 16)),
    "aligns a band at the end of each length, not of the keys": (frozenset({"key_lengths", "causal"}), (2, 4, 9, 16)),
    "takes key lengths where no gradient is recorded": (frozenset({"key_lengths", "gradient"}), (2, 4, 9, 16)),
    "wants a head_dim that is a multiple of 8 up to 256, not 12": (frozenset({"packed"}), (4, 9, 12)),
    "has no empty axes": (frozenset({"packed"}), (4, 0, 16)),
}


@pytest.mark.parametrize("reason", VARLEN)
def test_varlen_says_what_it_refuses(reason):
    features, shape = VARLEN[reason]
    assert varlen.supports(Call("attention", (("query", shape),), torch.float16, torch.device("cuda"), features)) == reason


def test_varlen_takes_what_it_is_for():
    for features, shape in ((("packed", "causal", "gradient"), (4, 9, 16)), (("key_lengths",), (2, 4, 9, 16))):
        call = Call("attention", (("query", shape),), torch.bfloat16, torch.device("cuda"), frozenset(features))
        assert varlen.supports(call) is None
