"""Every pair of options, on every path, against the float64 oracle: nothing is dropped."""

import numpy as np
from option_pairs import PAIRS, arguments
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
        state = mha.attention_state(query, key, value, **options)  # dense, or packed
        blocked = algebra.attention_state(prepare(query, key, value, **options)[1], block=(4, 2))
        rows, cols = slice(None, None, -2), slice(1, 5)
        part = mha.attention_weights(query, key, state.lse, rows=rows, cols=cols, **options)
        for actual, wanted in (
            *((state.out, out), (state.lse, lse), (blocked.out, out), (blocked.lse, lse)),
            *((mha.attention_weights(query, key, **options), weights), (part, weights[..., rows, cols])),
        ):
            np.testing.assert_allclose(backend.to_numpy(actual), wanted, rtol=0, atol=1e-13)

    cases = zip(PAIRS, rng.spawn(len(PAIRS)), strict=True)  # each pair with its own random numbers
    for_each({" and ".join(pair): (pair, generator) for pair, generator in cases}, check)
