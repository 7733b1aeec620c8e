"""Every pair of options of attention, and the arguments that use both."""

from itertools import combinations

import numpy as np

import mha_core as mha
from mha_conformance.cases.features import BATCH, FEATURES, plain, rounded, with_features
from mha_core.dispatch.contract import BIAS_FEATURES

L = 6
Q, K = np.arange(L)[:, None], np.arange(L)[None, :]
IDS = np.random.default_rng(0).integers(0, 2, size=(BATCH, L))
MORE = {
    "chunks": lambda call: call.masked(lambda make: mha.chunks(4), Q // 4 == K // 4),
    "prefix": lambda call: call.masked(lambda make: mha.prefix(5), K < 5),
    "not causal": lambda call: call.masked(lambda make: ~mha.causal(), K > Q),
    "segments": lambda call: call.masked(
        lambda make: mha.segments(make(IDS), make(IDS)), IDS[:, None, :, None] == IDS[:, None, None, :]
    ),
    "scale": lambda call: call.given("scale", lambda make: 0.3, 0.3),
}
"""Options that have no feature of their own, as functions that add them to a call."""
NAMES = [*(name for name in FEATURES if name != "lse"), *MORE]
PAIRS = [pair for pair in combinations(NAMES, 2) if not BIAS_FEATURES.issuperset(pair)]


def arguments(names, rng, make):
    """Return the arrays, the options of the call, and the same options for the oracle; ``rng`` draws query, key and value."""
    call = with_features(plain(rng, L, 4, times=2), names, np.random.default_rng(0))
    for name in MORE.keys() & set(names):
        call = MORE[name](call)
    call = rounded(call, np.asarray)
    return (call.query, call.key, call.value), {name: option(make) for name, option in call.options.items()}, call.oracle
