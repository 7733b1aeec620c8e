"""Every pair of options, on every path, against the float64 oracle: nothing is dropped."""

import numpy as np
from option_pairs import BIASES, MASKS, PAIRS, S, arguments
from together import for_each

import mha_core as mha
from mha_conformance import oracle
from mha_core.algebra import attention as algebra
from mha_core.ops.attend import prepare


def test_every_pair_of_options_holds_on_every_path(backend, rng):
    def check(case):
        pair, rng = case
        arrays, options, expected = arguments(pair, rng, backend.from_numpy)
        out, lse, weights = oracle.attention(*arrays, **expected)
        query, key, value = map(backend.from_numpy, arrays)

        def close(actual, wanted):
            np.testing.assert_allclose(backend.to_numpy(actual), wanted, rtol=0, atol=1e-13)

        state = mha.attention_state(query, key, value, **options)  # dense, or packed
        close(state.out, out)
        close(state.lse, lse)
        _, problem = prepare(query, key, value, **options)
        blocked = algebra.attention_state(problem, block=(4, 2))
        close(blocked.out, out)
        close(blocked.lse, lse)
        if "broadcast" not in pair:  # the weights do not depend on the values, and so not on their batch
            close(mha.attention_weights(query, key, **options), weights)
            some = weights[..., [4, 0], 1:5]
            close(mha.attention_weights(query, key, state.lse, rows=[4, 0], cols=slice(1, 5), **options), some)
        if not set(pair) & {"sink", *MASKS, *BIASES}:  # no other option depends on the keys: split them, and merge
            halves = [
                mha.attention_state(query, key[..., s, :], value[..., s, :], **options) for s in (slice(0, 2), slice(2, S))
            ]
            close(mha.merge_states(*halves).out, out)

    cases = zip(PAIRS, rng.spawn(len(PAIRS)), strict=True)  # each pair with its own random numbers
    for_each({" and ".join(pair): (pair, own) for pair, own in cases}, check)
