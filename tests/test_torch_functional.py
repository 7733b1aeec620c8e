"""torch's kernels of pieces and of the encoder layer, and varlen, which is CUDA's: right, and refused elsewhere."""

import math
from dataclasses import replace

import pytest
import torch

import mha_core as mha
from mha_core.ops.prepare import prepare
from mha_core.plugin import Call
from mha_torch import layers, onednn, varlen

B, H, L, D = 2, 4, 9, 8


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


@pytest.mark.parametrize("norm_first", [False, True])
def test_chunks_of_rows_give_what_the_whole_gives(rng, monkeypatch, norm_first):
    layer = mha.EncoderLayer.init(d_model=16, num_heads=4, d_ff=24, norm_first=norm_first, seed=1, backend="torch")
    x = torch.asarray(rng.normal(size=(3, 7, 16)), dtype=torch.float32)
    given = [x, x[0], x[:0], x.expand(2, 3, 7, 16), x[:1].expand(3, 7, 16), x.mT.contiguous().mT]
    options = {"mask": mha.causal() & mha.key_lengths(torch.tensor([3, 7, 5])), "query_offset": 0}
    whole = [layer(y) for y in given] + [layer(x, **options)]
    monkeypatch.setattr(layers, "_ROWS", 5)
    chunked = [layer(y) for y in given] + [layer(x, **options)]
    for actual, expected in zip(chunked, whole, strict=True):
        torch.testing.assert_close(actual, expected)


@pytest.fixture
def held_back(monkeypatch):
    """A processor on which oneDNN is taken, for products of any size."""
    monkeypatch.setattr(onednn, "_is_faster", lambda: True)
    monkeypatch.setattr(onednn, "_LEAST", 0)


def call_of_linear(x, w):
    return Call("linear", (("x", tuple(x.shape)), ("w", tuple(w.shape))), x.dtype, x.device)


@pytest.mark.parametrize("shape", [(300, 128), (3, 100, 128), (2, 0, 128), (2, 128)], ids=str)
def test_a_product_by_onednn_is_the_algebra(rng, shape):
    x = torch.asarray(rng.normal(size=shape), dtype=torch.float32)
    w, b = (torch.asarray(rng.normal(size=size), dtype=torch.float32) for size in ((128, 96), (96,)))
    with mha.use_kernel("linear", "algebra"):
        expected = mha.linear(x, w, b)
    for y in (x, x.mT.contiguous().mT):
        for weight in (w, w.mT.contiguous().mT):
            torch.testing.assert_close(onednn.linear(y, weight, b), expected)
            torch.testing.assert_close(onednn.linear(y, weight, None), expected - b, rtol=1e-5, atol=1e-4)


def test_onednn_is_chosen_where_it_is_faster_and_no_gradient_is_recorded(rng, monkeypatch):
    x, w = (torch.asarray(rng.normal(size=(256, 256)), dtype=torch.float32) for _ in range(2))
    monkeypatch.setattr(onednn, "_is_faster", lambda: True)
    assert onednn.supports(call_of_linear(x, w)) is None
    assert "multiplications" in onednn.supports(call_of_linear(x[:2], w))
    assert "multiplications" in onednn.supports(call_of_linear(x[:1], w.repeat(30, 30)))
    assert "float64" in onednn.supports(call_of_linear(x.double(), w.double()))
    monkeypatch.setattr(onednn, "_is_faster", lambda: False)
    assert "not known to be faster" in onednn.supports(call_of_linear(x, w))
    x.requires_grad_()
    assert mha.explain("linear", x, w).kernel == "functional"
    assert mha.linear(x, w).requires_grad


@pytest.mark.parametrize(
    ("known", "expected"),
    [
        ({}, False),
        ({"cpu_name": "AMD EPYC", "avx512_f": True}, True),
        ({"cpu_name": "AMD EPYC", "avx512_f": False}, False),
        ({"cpu_name": "Intel(R) Xeon(R) Platinum 8481C", "avx512_f": True}, False),
    ],
    ids=str,
)
def test_onednn_is_faster_where_mkl_leaves_out_avx512(monkeypatch, known, expected):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: known, raising=False)
    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: True)
    assert onednn._is_faster.__wrapped__() is expected


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_the_encoder_layer_with_products_by_onednn_is_the_algebra(rng, held_back, settings):
    layer = mha.EncoderLayer.init(d_model=16, num_heads=4, d_ff=24, seed=1, backend="torch", **settings)
    x = torch.asarray(rng.normal(size=(2, 7, 16)), dtype=torch.float32)
    before = {name: array.clone() for name, array in {"x": x, **layer.arrays()}.items()}
    with mha.verify() as done:
        layer(x)
    assert done.checked["encoder_layer", "functional"] == 1
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
    assert "norm_2=test_torch_pieces.Doubling" in found.features
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


def test_varlen_is_chosen_by_name_only_and_refuses_the_cpu():
    query = key = value = torch.ones(H, L, D, dtype=torch.float16)
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
