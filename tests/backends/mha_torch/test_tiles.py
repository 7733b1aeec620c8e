"""The torch kernel ``tiles``: correct with every option at the borders of its tiles, and chosen where it is the fastest."""

import math

import pytest
import torch
from torch_options import OPTIONS, B, H, L, S, seeded, tensor

import mha_core as mha
from mha_torch import tiles

D = 6
each_option = pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)


@pytest.fixture
def small_tiles(monkeypatch):
    """Tiles of 2 queries and 4 keys, of which the last ones are partial."""
    monkeypatch.setattr(tiles, "_STEP", 2)
    monkeypatch.setattr(tiles, "_SCORES", 0)
    monkeypatch.setattr(tiles, "_SMALLEST", 8)


def shapes(key_heads=H, value_dim=D):
    return (B, H, L, D), (B, key_heads, S, D), (B, key_heads, S, value_dim)


@each_option
@pytest.mark.parametrize("form", [{}, {"key_heads": 2}, {"value_dim": 3}], ids=str)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_softcap_with_every_option(small_tiles, options, form, dtype):
    query, key, value = (seeded(*shape).to(dtype) for shape in shapes(**form))
    with mha.verify() as done:  # within the bounds of algebra/rounding.py
        mha.attention_state(query, key, value, softcap=1.5, **options(lambda x: tensor(x, dtype)))
    assert done.checked == {("attention", "tiles"): 1}


@each_option
def test_a_score_function_with_every_option(small_tiles, options):
    given = options(tensor)
    if "bias" in given:
        pytest.skip("a score function is a bias")
    query, key, value = (seeded(*shape) for shape in shapes())
    bias = mha.score_function(lambda s, b, h, q, k: s * (1 + h) - (q - k) ** 2 / 9 + b)
    given.setdefault("query_offset", 0)
    with mha.verify() as done:
        mha.attention_state(query, key, value, bias=bias, **given)
    assert done.checked == {("attention", "tiles"): 1}


@pytest.mark.parametrize("name", ["lengths", "array", "array of heads", "chunks"])
def test_biases_by_distance_with_other_masks(small_tiles, name):
    given = {"query_offset": 0} | OPTIONS[name](tensor)
    for bias in (mha.alibi(H), mha.relative_bias(seeded(8, H), bidirectional=True, max_distance=6)):
        with mha.verify() as done:
            mha.attention_state(*(seeded(*shape) for shape in shapes()), bias=bias, softcap=1.5, **given)
        assert done.checked == {("attention", "tiles"): 1}


def test_packed_sequences_are_computed_apart(small_tiles):
    query, key, value = (seeded(1, H, 20, D) for _ in range(3))
    with mha.verify() as done:
        mha.attention_state(query, key, value, mask=mha.packed([9, 0, 4, 7]) & mha.causal(), softcap=2.0)
    assert done.checked == {("attention", "tiles"): 1}


@pytest.mark.parametrize("mask", [None, mha.causal()], ids=["all", "causal"])
@pytest.mark.parametrize("function", [lambda s, b, h, q, k, x: x, lambda s, b, h, q, k, x: s], ids=["array", "score"])
def test_what_a_function_returns_is_not_written_to(small_tiles, function, mask):
    x = seeded(8, 8)
    before = x.clone()
    query, key, value = (seeded(8, D) for _ in range(3))
    bias = mha.score_function(lambda s, b, h, q, k, x: function(s, b, h, q, k, x[q, k]), [x])
    with mha.verify() as done:
        mha.attention_state(query, key, value, bias=bias, mask=mask)
    assert done.checked == {("attention", "tiles"): 1}
    assert torch.equal(x, before)


@pytest.mark.parametrize("mask", [mha.causal(), None], ids=["causal", "all"])
def test_an_array_in_place_of_all_scores_is_not_written_to(mask):
    x = torch.full((8, 8), 3.0, dtype=torch.float64)
    bias = mha.score_function(lambda s, b, h, q, k, x: x, [x])
    query, key, value = (seeded(8, D) for _ in range(3))
    out = mha.scaled_dot_product_attention(query, key, value, bias=bias, mask=mask)
    mean = value.mean(0).expand(8, D) if mask is None else value.cumsum(0) / torch.arange(1, 9)[:, None]
    torch.testing.assert_close(out, mean)
    assert (x == 3).all()


def test_a_function_that_reads_a_tensor_with_a_gradient_is_refused():
    query = seeded(1, 2, 8, D)
    hidden = torch.ones(2, dtype=torch.float64, requires_grad=True)
    bias = mha.score_function(lambda s, b, h, q, k: s * hidden[h])
    with pytest.raises(TypeError, match=r"pass it in the arrays of mha\.score_function"):
        mha.scaled_dot_product_attention(query, query, query, bias=bias)
    with torch.no_grad():
        mha.scaled_dot_product_attention(query, query, query, bias=bias)


@pytest.mark.parametrize("batch", [(7,), (5, 2)], ids=str)
def test_the_memory_of_many_heads_is_bounded(monkeypatch, batch):
    monkeypatch.setattr(tiles, "_SCORES", 8 * 2 * H * 2)  # of two elements
    monkeypatch.setattr(tiles, "_SMALLEST", 8)
    monkeypatch.setattr(tiles, "_STEP", 2)
    sizes, made = [], tiles._Tiles.__init__
    monkeypatch.setattr(tiles._Tiles, "__init__", lambda self, p, q, k, v: sizes.append(q.shape[0]) or made(self, p, q, k, v))
    query, key, value = seeded(*batch, H, L, D), seeded(*batch, 2, S, D), seeded(*batch, 2, S, D)
    with mha.verify() as done:
        mha.attention_state(query, key, value, softcap=1.5, mask=mha.causal(), query_offset=S - L)
    assert done.checked == {("attention", "tiles"): 1}
    assert max(sizes) * H * 8 <= 2 * tiles._SCORES and sum(sizes) == torch.Size(batch).numel()


CHOSEN = {
    "softcap": ({"softcap": 20.0}, 8, "tiles"),
    "score function": ({"bias": mha.score_function(lambda s, b, h, q, k: s / 2)}, 8, "tiles"),
    "long bias": ({"bias": mha.alibi(2)}, 512, "tiles"),
    "short bias": ({"bias": mha.alibi(2)}, 511, "sdpa"),
    "packed bias": ({"bias": mha.alibi(2), "mask": mha.packed([512, 512])}, 1024, "sdpa"),
    "mask": ({"mask": mha.causal()}, 1024, "sdpa"),
}


@pytest.mark.parametrize(("options", "length", "kernel"), CHOSEN.values(), ids=CHOSEN)
def test_it_is_chosen_where_it_is_the_fastest(options, length, kernel):
    query = torch.zeros(1, 2, length, 4)
    chosen = mha.explain(mha.scaled_dot_product_attention, query, query, query, **options)
    assert chosen.kernel == kernel
    if kernel == "sdpa":
        assert "torch's fused kernel" in " ".join(str(chosen).split())


def test_few_queries_do_not_turn_the_keys(monkeypatch):
    monkeypatch.setattr(tiles, "is_turned", lambda p: pytest.fail("the keys would be copied"))
    query, key, value = seeded(1, 2, 1, 4), seeded(1, 2, 300, 4), seeded(1, 2, 300, 4)
    mha.scaled_dot_product_attention(query, key, value, softcap=5.0, mask=mha.window(99, 0), query_offset=299)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_the_exponential(dtype):
    smallest = math.log(torch.finfo(dtype).tiny)
    x = torch.linspace(smallest + 0.1, 0, 1001, dtype=dtype)
    expected = torch.exp(x.double())
    bound = (2 - x.double()) * torch.finfo(dtype).eps * expected  # of x log2 e, a relative error of 2 eps at most
    assert ((tiles.exp_in_place(x.clone()).double() - expected).abs() <= bound).all()
    assert tiles.exp_in_place(torch.tensor([-math.inf, smallest - 1, smallest - 90], dtype=dtype)).tolist() == [0, 0, 0]
    assert tiles.exp_in_place(torch.tensor([math.nan], dtype=dtype)).isnan().all()
