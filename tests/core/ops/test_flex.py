"""Functions of torch's FlexAttention, on torch, and on NumPy those that use operators and indexing alone."""

from itertools import product

import flex_functions as flex
import numpy as np
import pytest
from flex_functions import HEADS, LENGTH, MASKS, SCORES, TORCH_MASKS, TORCH_SCORES
from needs import Library

import mha_core as mha
from mha_conformance import oracle

torch, of_torch = Library("torch"), Library("torch.nn.attention.flex_attention")
pytestmark = pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
BATCH, WIDTH = 2, 6
SHAPE = (BATCH, HEADS, LENGTH, LENGTH)


def arrays():
    rng = np.random.default_rng(1)
    return [rng.standard_normal((BATCH, heads, LENGTH, WIDTH)) for heads in (HEADS, 1, 1)]


def of_each_pair(function, *arrays):
    """Return what a function of single numbers returns for each batch element, head, query and key, and elements of arrays."""
    return np.asarray([function(*(x[at] for x in arrays), *at) for at in product(*map(range, SHAPE))]).reshape(SHAPE)


@pytest.mark.parametrize("kernel", ["tiles", "algebra"])
@pytest.mark.parametrize("name", MASKS)
def test_a_mask_on_numpy(name, kernel):
    x, function = arrays(), MASKS[name](np.asarray)
    expected, lse, _ = oracle.attention(*x, allowed=of_each_pair(function))
    with mha.use_kernel("attention", kernel):
        state = mha.attention_state(*x, mask=mha.from_flex(function))
    np.testing.assert_allclose(state.out, expected, atol=1e-12)
    np.testing.assert_allclose(state.lse, lse, atol=1e-12)


@pytest.mark.parametrize("kernel", ["tiles", "algebra"])
@pytest.mark.parametrize("name", SCORES)
def test_a_score_function_on_numpy(name, kernel):
    query, key, value = arrays()
    function, scores = SCORES[name](np.asarray), query @ np.swapaxes(key, -1, -2) / WIDTH**0.5
    changed = of_each_pair(function, scores)
    expected, lse, _ = oracle.attention(query, key, value, bias=changed - scores)
    with mha.use_kernel("attention", kernel):
        state = mha.attention_state(query, key, value, bias=mha.from_flex(function))
    np.testing.assert_allclose(state.out, expected, atol=1e-12)
    np.testing.assert_allclose(state.lse, lse, atol=1e-12)


def dense(query, key, value, mask, score):
    """Attention with functions that torch.vmap calls with single numbers."""
    indices = [torch.arange(n) for n in SHAPE]
    over = [(0, None, None, None), (None, 0, None, None), (None, None, 0, None), (None, None, None, 0)]
    scores = query @ key.mT / WIDTH**0.5
    allowed = torch.ones(SHAPE, dtype=torch.bool)
    for axes in reversed(over):
        mask = mask and torch.vmap(mask, axes)
        score = score and torch.vmap(score, (0, *axes))
    if score is not None:
        scores = score(scores, *indices)
    if mask is not None:
        allowed = mask(*indices)
    return torch.softmax(scores.masked_fill(~allowed, -torch.inf), -1) @ value


def tensors(**options):
    return [torch.tensor(x, **options) for x in arrays()]


ON_TORCH = [*((name, None) for name in (MASKS | TORCH_MASKS)), *((None, name) for name in (SCORES | TORCH_SCORES))]
ON_TORCH += [("causal", "alibi"), ("documents", "softcap"), ("neighbourhood, clamped", "relative")]


def functions(mask, score):
    """Return the functions of these names, and the arguments of ``attention`` that are made of them."""
    pairs = (mask and (MASKS | TORCH_MASKS)[mask](torch.asarray), score and (SCORES | TORCH_SCORES)[score](torch.asarray))
    return pairs, {name: mha.from_flex(f) for name, f in zip(("mask", "bias"), pairs, strict=True) if f}


@pytest.mark.parametrize(("mask", "score"), ON_TORCH)
def test_torch_computes_the_same(mask, score):
    x, ((mask_mod, score_mod), options) = tensors(), functions(mask, score)
    blocks = mask_mod and of_torch.create_block_mask(mask_mod, *SHAPE, device="cpu")
    expected = of_torch.flex_attention(*x, score_mod=score_mod, block_mask=blocks, enable_gqa=True)
    torch.testing.assert_close(mha.scaled_dot_product_attention(*x, **options), expected)


@pytest.mark.parametrize(("mask", "score"), ON_TORCH)
def test_gradients_on_torch_are_those_of_dense_attention(mask, score):
    """torch's own function refuses gradients on a CPU."""
    x, ((mask_mod, score_mod), options) = tensors(requires_grad=True), functions(mask, score)
    weights = torch.cos(torch.arange(BATCH * HEADS * LENGTH * WIDTH, dtype=torch.float64)).reshape(*SHAPE[:3], WIDTH)
    expected = torch.autograd.grad((dense(*x, mask_mod, score_mod) * weights).sum(), x)
    gradients = torch.autograd.grad((mha.scaled_dot_product_attention(*x, **options) * weights).sum(), x)
    for actual, exact in zip(gradients, expected, strict=True):
        torch.testing.assert_close(actual, exact)


def test_gradients_reach_the_arrays_that_a_score_function_is_given():
    def learned(score, b, h, q_idx, kv_idx, slopes, cap):
        return cap * torch.tanh((score - slopes[h] * (q_idx - kv_idx).abs()) / cap)

    x, parameters = tensors(), [torch.tensor(y, dtype=torch.float64, requires_grad=True) for y in ([0.1, 0.4], 3.0)]
    ours = mha.scaled_dot_product_attention(*x, mask=mha.causal(), bias=mha.score_function(learned, parameters))
    exact = dense(*x, flex.causal, lambda *indices: learned(*indices, *parameters))
    for actual, expected in zip(*(torch.autograd.grad(y.square().sum(), parameters) for y in (ours, exact)), strict=True):
        torch.testing.assert_close(actual, expected)


def test_a_tensor_from_the_surroundings_that_requires_a_gradient_is_refused():
    x, slopes = tensors(requires_grad=True), torch.ones(HEADS, dtype=torch.float64, requires_grad=True)
    bias = mha.from_flex(lambda score, b, h, q_idx, kv_idx: score - slopes[h] * (q_idx - kv_idx).abs())
    with pytest.raises(
        TypeError, match=r"reads a tensor that requires a gradient: pass it in the arrays of mha.score_function"
    ):
        mha.scaled_dot_product_attention(*x, bias=bias).sum().backward()


NAMED = {
    "causal": {"mask": mha.causal()},
    "sliding window": {"mask": mha.window(7, 0)},
    "prefix LM": {"mask": mha.prefix(20) | mha.causal()},
    "documents": {"mask": mha.segments(flex.DOCUMENTS, flex.DOCUMENTS) & mha.causal()},
    "lengths": {"mask": mha.key_lengths(np.asarray([LENGTH - 7, 12]))},
}


@pytest.mark.parametrize("name", NAMED)
def test_a_mask_that_has_a_name_here_is_the_same(name):
    x, mask = arrays(), mha.from_flex(MASKS[name](np.asarray))
    np.testing.assert_allclose(
        mha.scaled_dot_product_attention(*x, mask=mask), mha.scaled_dot_product_attention(*x, **NAMED[name]), atol=1e-12
    )


def test_a_node_of_a_tree_sees_its_ancestors():
    seen = mha.from_flex(MASKS["ancestors"](np.asarray))
    x = np.zeros((1, LENGTH, 2))
    weights = mha.attention_weights(x, x, mask=seen)[0]
    for node in range(LENGTH):
        line, at = {node}, node
        while at:
            at = flex.PARENTS[at]
            line.add(at)
        assert set(np.flatnonzero(weights[node])) == line


@pytest.mark.parametrize("name", ["causal", "sliding window", "dilated window", "prefix LM", "combined", "partial"])
def test_a_block_mask_has_the_counts_of_torch(name):
    n = 192
    function = (MASKS | TORCH_MASKS)[name](torch.asarray)
    theirs = of_torch.create_block_mask(function, None, None, n, n, device="cpu", BLOCK_SIZE=64)
    some, every = int(theirs.kv_num_blocks.sum()), int(theirs.full_kv_num_blocks.sum())
    mask, counts = mha.block_mask(function, n, n, backend="torch"), {"none": 9 - some - every, "some": some, "all": every}
    assert mask.counts == counts and repr(mask) == f"block_mask(192 queries, 192 keys: {counts})"
