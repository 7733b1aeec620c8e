"""The torch kernel ``sdpa``: correct with every option, without masks where possible, and refused where it would be wrong."""

import math
from functools import partial

import pytest
import torch
from torch_options import OPTIONS, B, H, L, S, tensor

import mha_core as mha
from mha_core.plugin import AttentionProblem, Call
from mha_torch import sdpa
from mha_torch.shapes import recorded_with_mask, with_whole_rows

D = 8


@pytest.fixture
def qkv(rng):
    def make(dtype=torch.float64, *, keys=S, key_heads=H, value_dim=D, grad=False):
        shapes = (B, H, L, D), (B, key_heads, keys, D), (B, key_heads, keys, value_dim)
        arrays = (torch.asarray(rng.normal(size=shape)).to(dtype) for shape in shapes)
        return tuple(x.requires_grad_(grad) for x in arrays)

    return make


each_option = pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
DTYPES = {"float64": torch.float64, "float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


def like(x):
    return partial(tensor, dtype=x.dtype)


@each_option
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_sdpa_is_chosen_and_equals_the_algebra(qkv, options, dtype):
    query, key, value = qkv(dtype)
    given = options(like(query))
    for attend in (mha.attention_state, mha.scaled_dot_product_attention):
        assert mha.explain(attend, query, key, value, **given).kernel == "sdpa"
        with mha.verify() as done:  # within the bounds of algebra/rounding.py
            attend(query, key, value, **given)
        assert done.checked == {("attention", "sdpa"): 1}


FLAGS = ["nothing", "causal at the start", "causal at the end", "scale"]


@pytest.mark.parametrize("name", FLAGS)
def test_no_mask_is_built_where_a_flag_suffices(qkv, monkeypatch, name):
    asked = []
    monkeypatch.setattr(sdpa, "mask_of", lambda *args: asked.append(args))
    mha.attention_state(*qkv(), **OPTIONS[name](torch.asarray))
    assert not asked


def test_packed_sequences_need_no_mask(qkv, monkeypatch):
    query, key, value = qkv(keys=L)
    lengths = [2, 2, 0, 1, 4]
    expected = mha.attention_state(query, key, value, mask=mha.packed(lengths) & (torch.ones(L, L) == 1) & mha.causal())
    asked = []
    monkeypatch.setattr(sdpa, "mask_of", lambda *args: asked.append(args))
    state = mha.attention_state(query, key, value, mask=mha.packed(lengths) & mha.causal())
    assert not asked
    torch.testing.assert_close(state.out, expected.out)
    torch.testing.assert_close(state.lse, expected.lse)


LONG = {
    "array in a band": (lambda rng: torch.asarray(rng.random((2, 300, 300)) < 0.1) & mha.window(40, 10), 2 * 16 * 300),
    "chunks": (lambda rng: mha.chunks(50), 16 * (100 + 2 * 8)),  # two chunks, and steps of keys that reach beyond them
}
"""Masks of 300 queries and keys, and the most pairs of a block of queries."""


@pytest.mark.parametrize(("make", "most"), LONG.values(), ids=LONG)
def test_long_masks_are_built_in_blocks_of_queries_for_the_keys_they_reach(rng, monkeypatch, make, most):
    query, key, value = (torch.asarray(rng.normal(size=(1, 2, 300, 4))) for _ in range(3))
    mask = make(rng)
    with mha.use_kernel("attention", "algebra"):
        expected = mha.attention_state(query, key, value, mask=mask)
    monkeypatch.setattr(sdpa, "_MASK", 1 << 12)
    monkeypatch.setattr(sdpa, "_STEP", 8)
    built, build = [], sdpa.mask_of
    monkeypatch.setattr(sdpa, "mask_of", lambda *args: built.append(build(*args)) or built[-1])
    state = mha.attention_state(query, key, value, mask=mask)
    assert len(built) > 5
    assert max(x.numel() for x in built) <= most
    torch.testing.assert_close(state.out, expected.out)
    torch.testing.assert_close(state.lse, expected.lse)


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("name", [*FLAGS, "window"])
def test_the_same_call_gives_the_same_bits_whatever_the_strides(qkv, name, dtype):
    arrays = qkv(dtype)
    given = OPTIONS[name](like(arrays[0]))
    first = mha.attention_state(*arrays, **given)
    columns = [x.mT.contiguous().mT for x in arrays]
    halves = [torch.cat([x, x], -1)[..., D:] for x in arrays]
    for views in (arrays, columns, halves):
        again = mha.attention_state(*views, **given)
        assert torch.equal(again.out, first.out)
        assert torch.equal(again.lse, first.lse)


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_the_bias_of_packed_sequences_is_computed_once_per_distance(rng, monkeypatch, dtype):
    """All sequences use views of one array with a bias for each distance."""
    lengths = [200, 3, 3, 50]
    arrays = [torch.asarray(rng.normal(size=(4, sum(lengths), 8))).to(dtype) for _ in range(3)]
    table = torch.asarray(rng.normal(size=(32, 4))).to(dtype)
    options = {"mask": mha.packed(lengths), "bias": mha.relative_bias(table, bidirectional=True, max_distance=128)}
    with mha.use_kernel("attention", "algebra"):
        expected = mha.scaled_dot_product_attention(*arrays, **options)
    sizes, grid = [], AttentionProblem.grid
    monkeypatch.setattr(AttentionProblem, "grid", lambda p, *sides: sizes.append([*map(len, sides)]) or grid(p, *sides))
    out = mha.scaled_dot_product_attention(*arrays, **options)
    assert sizes == [[1, 2 * 200 - 1]]
    tolerance = 1e-5 if dtype.itemsize > 2 else 4 * torch.finfo(dtype).eps
    torch.testing.assert_close(out, expected, rtol=tolerance, atol=tolerance)


# gradients


def test_a_gradient_through_lse_is_refused_by_sdpa_and_right(qkv):
    query, key, value = qkv(grad=True)
    with (
        pytest.raises(mha.KernelUnsupported, match="does not return a log-sum-exp with a gradient"),
        mha.use_kernel("attention", "sdpa"),
    ):
        mha.attention_state(query, key, value)
    halves = [mha.attention_state(query, key[..., s, :], value[..., s, :]) for s in (slice(0, 5), slice(5, S))]
    whole = mha.scaled_dot_product_attention(query, key, value)
    for x in (query, key, value):
        (actual,) = torch.autograd.grad(mha.merge_states(*halves).out.square().sum(), x, retain_graph=True)
        (expected,) = torch.autograd.grad(whole.square().sum(), x, retain_graph=True)
        torch.testing.assert_close(actual, expected)


@pytest.mark.parametrize("mask", [mha.prefix(0), mha.prefix(0) & mha.causal(), mha.key_lengths(0)], ids=str)
@pytest.mark.parametrize("function", [mha.scaled_dot_product_attention, mha.attention_state, mha.attention_weights])
def test_the_gradient_is_zero_where_no_key_can_be_reached(qkv, function, mask):
    arrays = qkv(keys=L, key_heads=2, grad=True)[: 2 if function is mha.attention_weights else 3]
    results = function(*arrays, mask=mask)
    for result in (results,) if isinstance(results, torch.Tensor) else results:
        assert result.requires_grad
        actual = torch.autograd.grad(result.sum(), arrays, allow_unused=True, retain_graph=True)
        assert all(x is None or not x.any() for x in actual) and actual[0] is not None
        assert result.is_contiguous() and result.untyped_storage().size() >= result.numel() * result.itemsize
    results[0].sum().backward()


def test_without_grad_mode_nothing_is_recorded(qkv):
    query, key, value = qkv(grad=True)
    with torch.no_grad():
        assert mha.explain("attention_state", query, key, value).features == {"lse"}
        assert not mha.scaled_dot_product_attention(query, key, value).requires_grad
    assert mha.scaled_dot_product_attention(query, key, value).requires_grad


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")  # torch.func.jvp's own
@pytest.mark.parametrize("of", ["attention", "its gradient"])
def test_forward_gradients_use_the_algebra(qkv, of):
    query, key, value = qkv()

    def attend(x):
        return mha.scaled_dot_product_attention(x, key, value, mask=mha.causal(), query_offset=0)

    function = attend if of == "attention" else torch.func.grad(lambda x: attend(x).sin().sum())
    _, actual = torch.func.jvp(function, (query,), (torch.ones_like(query),))
    step = 1e-6
    torch.testing.assert_close(actual, (function(query + step) - function(query - step)) / (2 * step), rtol=1e-6, atol=1e-8)


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


def test_verify_accepts_weights_that_underflow_in_float16():
    query, key = torch.tensor([[[1.0, 0.0]]]), torch.zeros(1, 40, 2)
    key[0, 0, 0] = 17.5
    value = torch.full((1, 40, 2), 6e4)
    value[0, 0] = 0
    with mha.verify() as done:
        mha.scaled_dot_product_attention(query.half(), key.half(), value.half(), scale=1.0)
    assert done.checked == {("attention", "sdpa"): 1}


@pytest.mark.parametrize("scale", [0.0, -0.5])
def test_a_scale_that_is_not_positive_is_refused_on_cuda(scale):
    """The maximum of the scores, which torch's kernels scale, is not the maximum of the scaled scores."""
    call = partial(Call, "attention", (("query", (2, 4, 9, 16)),), torch.float16, options=(("scale", scale),))
    assert sdpa.supports(call(device=torch.device("cuda"))) == "may return NaN when scale <= 0"
    assert sdpa.supports(call(device=torch.device("cpu"))) is None


@pytest.mark.parametrize(
    "mask", [torch.arange(6.0).reshape(2, 3, 1), torch.arange(24.0).reshape(2, 4, 3).mT, torch.arange(24.0).reshape(2, 3, 4)]
)
def test_masks_for_cuda_have_a_number_for_each_key_side_by_side(mask):
    whole = with_whole_rows(mask, 4)
    assert whole.stride(-1) == 1 and torch.equal(whole, mask.expand(2, 3, 4))


def test_on_cuda_a_query_records_a_gradient_if_the_mask_alone_does():
    """torch needs it; see the function. The query keeps its bits, and the mask's gradient is that of attention alone."""
    query, mask = torch.tensor([1.5, math.inf, math.nan]), torch.tensor([[math.nan, 2.0]], requires_grad=True)
    recorded = recorded_with_mask(query, query, query, mask)
    assert recorded.requires_grad
    torch.testing.assert_close(recorded, query, rtol=0, atol=0, equal_nan=True)
    assert not torch.autograd.grad(recorded[0], mask)[0].any()
    assert recorded_with_mask(query, query, query, mask.detach()) is query
    alone = torch.func.grad(lambda mask: recorded_with_mask(query, query, query, mask)[0])(mask.detach())
    assert not alone.any()
