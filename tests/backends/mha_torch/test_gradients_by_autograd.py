"""Attention that torch differentiates: second derivatives, torch.func, torch.compile, and memory."""

import math
import sys

import pytest
import torch
from processes import printed
from torch.autograd import gradcheck, gradgradcheck
from torch_options import seeded

import mha_core as mha

pytestmark = pytest.mark.full


SMALL = {
    "lse": lambda *_: {},
    "softcap": lambda *_: {"softcap": 1.5},
    "window": lambda *_: {"mask": mha.window(2, 1), "query_offset": 1},
    "lengths": lambda *_: {"mask": mha.key_lengths(torch.tensor([0, 3]))},
    "sink": lambda sink: {"sink": sink[0], "mask": mha.window(1, 0), "query_offset": -2},
    "bias": lambda bias: {"bias": bias.repeat(1, 2)[:, None]},
    "relative bias": lambda table: {
        "bias": mha.relative_bias(table.repeat(4, 1), bidirectional=True, max_distance=6),
        "mask": mha.causal(),
        "query_offset": 1,
    },
}


def small(options):
    """Return a function of query, key, value and one more array, and such arrays."""

    def attend(query, key, value, more):
        state = mha.attention_state(query, key, value, **options(more))
        return state.out, torch.where(state.lse == -math.inf, 0, state.lse)

    return attend, [x.requires_grad_() for x in (seeded(2, 2, 3, 2), seeded(2, 1, 4, 2), seeded(2, 1, 4, 3), seeded(2, 2))]


@pytest.mark.parametrize("options", SMALL.values(), ids=SMALL)
def test_first_and_second_derivatives_equal_differences(options):
    attend, given = small(options)
    assert gradcheck(attend, given, check_undefined_grad=False)
    assert gradgradcheck(attend, given)


@pytest.mark.parametrize("options", SMALL.values(), ids=SMALL)
def test_transforms_compose(options):
    """torch.func.grad, grad of grad, and vmap inside and outside of a gradient."""
    attend, given = small(options)
    given = [x.detach() for x in given]

    def loss(*inputs):
        return sum(y.sin().sum() for y in attend(*inputs))

    def second(*inputs):
        return sum(x.sin().sum() for x in torch.func.grad(loss, argnums=(0, 1, 2, 3))(*inputs))

    for function in (loss, second):
        actual = torch.func.grad(function, argnums=(0, 1, 2, 3))(*given)
        with mha.use_kernel("attention", "algebra"):
            expected = torch.func.grad(function, argnums=(0, 1, 2, 3))(*given)
        torch.testing.assert_close(actual, expected)
    stacked = [torch.stack([x, x + 0.1, -x]) for x in given]
    each = [torch.func.grad(loss, argnums=(0, 1, 2, 3))(*(x[at] for x in stacked)) for at in range(3)]
    expected = tuple(torch.stack(xs) for xs in zip(*each, strict=True))
    torch.testing.assert_close(torch.func.vmap(torch.func.grad(loss, argnums=(0, 1, 2, 3)))(*stacked), expected)
    inside = torch.func.grad(lambda *inputs: torch.func.vmap(loss)(*inputs).sum(), argnums=(0, 1, 2, 3))(*stacked)
    torch.testing.assert_close(inside, expected)


def test_a_backward_pass_may_run_under_autocast():
    given = [torch.randn(1, 2, 5, 4, generator=torch.Generator().manual_seed(at)).requires_grad_() for at in range(3)]
    out = mha.scaled_dot_product_attention(*given, softcap=2.0)
    expected = torch.autograd.grad(out.sum(), given, retain_graph=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        actual = torch.autograd.grad(out.sum(), given)
    torch.testing.assert_close(actual, expected)


def test_gradients_compile_whole():
    table = torch.randn(8, 2).requires_grad_()
    x = torch.randn(1, 2, 6, 4).requires_grad_()

    def loss(x, table):
        bias = mha.relative_bias(table, bidirectional=True, max_distance=6)
        return mha.attention_state(x, x, x, bias=bias, softcap=2.0, mask=mha.causal()).out.sin().sum()

    torch._dynamo.reset()
    actual = torch.autograd.grad(torch.compile(loss, fullgraph=True, backend="aot_eager")(x, table), (x, table))
    torch.testing.assert_close(actual, torch.autograd.grad(loss(x, table), (x, table)))


MEMORY = """
import sys, torch, mha_core as mha
from mha_conformance.probes.peak_memory import peak, reset_peak, trim
torch.set_num_threads(1)
OPTIONS = {
    "softcap": lambda n, more: {"softcap": 20.0},
    "relative bias": lambda n, more: {"bias": mha.relative_bias(more, bidirectional=True, max_distance=128)},
    "sink": lambda n, more: {"sink": more[0]},
    "lse": lambda n, more: {},
    "alibi": lambda n, more: {"bias": mha.alibi(2), "mask": mha.causal()},
    "causal at the end": lambda n, more: {"mask": mha.causal(), "query_offset": -5},
    "window": lambda n, more: {"mask": mha.window(300, 0)},
    "lengths": lambda n, more: {"mask": mha.key_lengths(torch.tensor([n - 9])) & mha.causal()},
}
def growth(name, n):
    query, key, value, d_out = (torch.ones(1, 2, n, 16) for _ in range(4))
    inputs = [x.requires_grad_() for x in (query, key, value, torch.ones(32, 2))]
    options = OPTIONS[name](n, inputs[3])
    trim()
    reset_peak()
    before = peak()
    state = mha.attention_state(*inputs[:3], **options)
    torch.autograd.grad(list(state), inputs, [d_out, d_out[..., 0]], allow_unused=True)
    return peak() - before
for name in OPTIONS:
    growth(name, 256)
    print(growth(name, 4096) >> 20, name)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the peak of a process is reset on Linux only")
def test_memory_grows_with_the_length_not_its_square():
    """The scores of both heads are 128 MB; autograd would keep several such arrays."""
    grown = {name: int(size) for size, name in (line.split(" ", 1) for line in printed(MEMORY).splitlines())}
    assert max(grown.values()) < 64, grown
