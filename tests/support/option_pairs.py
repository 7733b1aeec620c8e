"""Every pair of options of attention, and the arguments that use both."""

from itertools import combinations

import numpy as np

from mha_conformance.cases import masks
from mha_conformance.cases.features import FEATURES, go_together, problem_with

L = 6
Q, K = np.arange(L)[:, None], np.arange(L)
IDS = np.random.default_rng(0).integers(0, 2, size=L)
MASKS = {
    "another window": masks.band(Q, K, -1, 2),
    "chunks": masks.chunks(Q, K, 4),
    "prefix": masks.prefix(K, 5),
    "not causal": ~masks.band(Q, K, None, 0),
    "segments": masks.segments(IDS, IDS),
}
"""Masks that no feature of its own tells apart."""
NAMES = [*(name for name in FEATURES if name != "lse"), *MASKS, "scale"]
PAIRS = [pair for pair in combinations(NAMES, 2) if go_together(pair)]


def arguments(names, rng, make):
    """Return the arrays, the options of the call, and the same options for the oracle; ``rng`` draws query, key and value."""
    problem, drawn = (problem_with(names, generator, L, 4) for generator in (np.random.default_rng(0), rng))
    options, oracle = problem.options(make), problem.oracle
    for mask in (MASKS[name] for name in MASKS.keys() & set(names)):
        options["mask"] = mask(make) & options["mask"] if "mask" in options else mask(make)
        oracle["allowed"] = mask.allowed & oracle["allowed"]
    if "scale" in names:
        options["scale"] = oracle["scale"] = 0.3
    return (2 * drawn.query, drawn.key, drawn.value), options, oracle
