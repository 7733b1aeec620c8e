"""Attention in which sequence shards become head shards and back, over ranks that are threads: against one process."""

import numpy as np
import pytest

import mha_core as mha
from mha_core.distributed import RankFailed, heads_attention, layout_of, shard
from ranks import results, run
from test_distributed import problem
from test_distributed_gradients import one_process
from test_parts import L, S, biases, masks

HEADS = [(4, 4, 2), (6, 3, 2), (6, 3, 3), (4, 1, 4), (4, 2, 4), (4, 4, 3)]
"""Heads of queries and of keys, and ranks."""


def own(group, layout, *arrays):
    return [shard(x, layout, group=group) for x in arrays]


@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("layout", ["contiguous", "zigzag"])
@pytest.mark.parametrize("mask", [*masks(), "heads", "packed"])
def test_head_shards_equal_one_process(size, layout, mask):
    arrays, options = problem()
    options |= {"weight_dropout": mha.weight_dropout(0.2, seed=3)}
    r = np.random.default_rng(4)
    if mask == "packed":
        arrays = [x[..., :L, :] for x in arrays]
        options["mask"] = mha.packed([5, 0, L - 5])
    else:
        options["mask"] = r.random((4, L, S)) < 0.7 if mask == "heads" else masks()[mask]
    for bias in biases().values():
        if mask == "packed" and bias is not None and hasattr(bias, "shape"):
            continue
        every = {**options, "bias": bias}
        exact = mha.attention_state(*arrays, **every)
        found = results(
            size,
            lambda group, every=every: heads_attention(*own(group, layout, *arrays), group=group, layout=layout, **every),
        )
        for rank, state in enumerate(found):
            positions = [i for some in layout_of(layout, L, size)[rank] for i in some]
            np.testing.assert_allclose(state.out, exact.out[..., positions, :], rtol=0, atol=1e-12)
            np.testing.assert_allclose(state.lse, exact.lse[..., positions], rtol=0, atol=1e-12)


@pytest.mark.parametrize(("heads", "kv", "size"), HEADS)
def test_gradients_of_grouped_heads_equal_those_of_one_process(heads, kv, size):
    r = np.random.default_rng(0)
    arrays = [r.normal(size=(2, h, n, 6)) for h, n in ((heads, L), (kv, S), (kv, S))]
    options = {"sink": r.normal(size=heads), "mask": mha.causal(), "query_offset": 6, "softcap": 3.0, "bias": mha.alibi(heads)}
    state = mha.attention_state(*arrays, **options)
    d = mha.AttentionState(r.normal(size=state.out.shape), r.normal(size=state.lse.shape))
    *exact, exact_sink = one_process(arrays, d, **options)

    def on_rank(group):
        d_out, d_lse = own(group, "zigzag", d.out, d.lse[..., None])
        _, pullback = mha.vjp(heads_attention, *own(group, "zigzag", *arrays), group=group, layout="zigzag", **options)
        found = pullback(mha.AttentionState(d_out, d_lse[..., 0]))
        return [*found, found.options["sink"]]

    found = results(size, on_rank)
    for rank, (*mine, _) in enumerate(found):
        for x, whole, length in zip(mine, exact, (L, S, S), strict=True):
            positions = [i for some in layout_of("zigzag", length, size)[rank] for i in some]
            np.testing.assert_allclose(x, whole[..., positions, :], rtol=0, atol=1e-12)
    np.testing.assert_allclose(sum(sink for *_, sink in found), exact_sink, rtol=0, atol=1e-12)


def test_heads_that_do_not_divide_and_arrays_without_heads_are_refused():
    x = np.ones((2, 6, 4))
    for error in run(3, lambda g: heads_attention(*[shard(x, group=g)] * 3, group=g))[0]:
        with pytest.raises(ValueError, match="2 key heads and 2 query heads do not divide among 3 ranks: use ring_attention"):
            raise error
    for error in run(2, lambda g: heads_attention(*[shard(x[0], group=g)] * 3, group=g))[0]:
        with pytest.raises(ValueError, match=r"expected arrays of at least 3 axes, \(\.\.\., heads, length, head_dim\)"):
            raise error


def test_an_error_of_one_rank_is_told_to_the_others(monkeypatch):
    from mha_core.distributed import heads

    true = heads.attention_state

    def fails(*arrays, **options):
        if arrays[0].shape[-3] == 2:
            raise MemoryError("no room for two heads")
        return true(*arrays, **options)

    monkeypatch.setattr(heads, "attention_state", fails)
    x = np.ones((3, 6, 4))
    (first, second), _ = run(2, lambda g: heads_attention(*[shard(x, group=g)] * 3, group=g))
    assert isinstance(first, MemoryError)
    assert isinstance(second, RankFailed) and str(second) == "rank 0: MemoryError: no room for two heads"
