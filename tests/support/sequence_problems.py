"""Problems of attention with every kind of mask and bias, whole and over ranks."""

from functools import partial

import numpy as np
from rank_tests.threads import assert_parts, assert_state_parts, results, states

import mha_core as mha
from mha_core.distributed import shard

L, S, H = 23, 29, 4


def rng():
    return np.random.default_rng(5)


def masks():
    r = rng()
    lengths = np.array([[7], [29]])
    ids = [np.sort(r.integers(0, 4, size=(2, 1, n)), axis=-1)[:, 0] for n in (L, S)]
    return {
        "none": None,
        "causal": mha.causal(),
        "window": mha.window(6, 2),
        "chunks": mha.chunks(5),
        "prefix": mha.prefix(11) | mha.causal(),
        "lengths": mha.key_lengths(lengths[:, 0]) & mha.window(20, 20),
        "segments": mha.segments(*ids),
        "array": mha.array_mask(r.random((2, 1, L, S)) < 0.6),
        "heads": mha.array_mask(r.random((H, L, S)) < 0.7),
        "row": mha.array_mask(r.random((S,)) < 0.6),
        "not": ~mha.window(3, 3),
        "function": mha.mask_function(lambda b, h, q, k, ids: (2 * q + h - k + b + ids[k]) % 4 > 0, [r.integers(0, 3, S)]),
        "block mask": mha.block_mask(lambda b, h, q, k: (q - k) % (h + 2) < 2, L, S, num_heads=H, query_offset=3),
    }


def biases():
    r = rng()
    return {
        "none": None,
        "alibi": mha.alibi(H),
        "relative": mha.relative_bias(r.normal(size=(8, H)), bidirectional=True, max_distance=9),
        "array": r.normal(size=(H, L, S)),
        "column": r.normal(size=(L, 1)),
        "score function": mha.score_function(_bent, [r.normal(size=H), r.normal(size=S)]),
    }


def _bent(score, b, h, q, k, slopes, weights):
    return np.tanh(score + slopes[h] * (q - k)) * (1 + 0.1 * b) + weights[k] * score


def problem(dtype=np.float64):
    rng = np.random.default_rng(1)
    arrays = [rng.normal(size=(2, h, n, 6)).astype(dtype) for h, n in ((H, L), (2, S), (2, S))]
    return arrays, {"query_offset": 3, "sink": rng.normal(size=H).astype(dtype), "softcap": 4.0}


def compare(size, attend, arrays, layout, seed=0, context="", sink=None, **options):
    """Assert that attention over ranks and its gradients equal those of one process: of query, key, value and the sink."""
    learned = {} if sink is None else {"sink": sink}
    state, pullback = mha.vjp(partial(mha.attention_state, **options), *arrays, **learned)
    r = np.random.default_rng(seed)
    d = mha.AttentionState(r.normal(size=state.out.shape), r.normal(size=state.lse.shape))
    exact = pullback(d)

    def on_rank(group):
        *parts, d_out, d_lse = (shard(x, layout, group=group) for x in (*arrays, d.out, d.lse[..., None]))
        _, pullback = mha.vjp(partial(attend, group=group, layout=layout, **options), *parts, **learned)
        gradients, again = (pullback(mha.AttentionState(d_out, d_lse[..., 0])) for _ in range(2))
        assert all((a == b).all() for a, b in zip(gradients, again, strict=True))
        return [*gradients, gradients.options.get("sink", 0.0)]

    assert_state_parts(states(size, attend, arrays, layout, **learned, **options), state, layout)
    *gradients, sinks = zip(*results(size, on_rank), strict=True)
    for parts, whole in zip(gradients, exact, strict=True):
        assert_parts(parts, whole, layout, context=context)
    np.testing.assert_allclose(sum(sinks), exact.options.get("sink", 0.0), rtol=0, atol=1e-12, err_msg=context)
