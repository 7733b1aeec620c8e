"""Every pair of options of attention, and the arguments that use both."""

from itertools import combinations

import numpy as np

import mha_core as mha

B, H, L, S = 2, 4, 6, 6


OFFSET = 1


Q, K = np.arange(L)[:, None] + OFFSET, np.arange(S)[None, :]


RNG = np.random.default_rng(0)


ARRAY, LENGTHS, IDS = RNG.random((B, H, L, S)) < 0.6, np.asarray([4, 6]), RNG.integers(0, 2, size=(B, L))


BIAS, SINK, TABLE = RNG.normal(size=(H, L, S)), RNG.normal(size=H), RNG.normal(size=(4, H))


PACKED = np.repeat([0, 1, 2], [2, 1, 3])


# name: (make -> mask, the same as a boolean array)
MASKS = {
    "causal": (lambda make: mha.causal(), K <= Q),
    "window": (lambda make: mha.window(2, 1), (K >= Q - 2) & (K <= Q + 1)),
    "chunks": (lambda make: mha.chunks(4), Q // 4 == K // 4),
    "prefix": (lambda make: mha.prefix(5), (K < 5) & (Q == Q)),
    "key_lengths": (lambda make: mha.key_lengths(make(LENGTHS)), LENGTHS[:, None, None, None] > K),
    "segments": (lambda make: mha.segments(make(IDS), make(IDS)), IDS[:, None, :, None] == IDS[:, None, None, :]),
    "packed": (lambda make: mha.packed([2, 1, 3]), PACKED[:, None] == PACKED[None, :]),
    "array": (lambda make: mha.array_mask(make(ARRAY)), ARRAY),
    "not causal": (lambda make: ~mha.causal(), K > Q),
    "either": (lambda make: mha.causal() | mha.prefix(2), (K <= Q) | (K < 2)),
}


BUCKETS = np.asarray(
    [[mha.relative_bias(TABLE, bidirectional=True, max_distance=4).bucket(int(d)) for d in row] for row in K - Q]
)


SLOPES = np.asarray(mha.alibi(H).slopes)[:, None, None]


# name: (make -> bias, the same as an array)
BIASES = {
    "bias": (lambda make: make(BIAS), BIAS),
    "alibi": (lambda make: mha.alibi(H), -SLOPES * np.abs(Q - K)),
    "relative_bias": (
        lambda make: mha.relative_bias(make(TABLE), bidirectional=True, max_distance=4),
        np.moveaxis(TABLE[BUCKETS], -1, 0),
    ),
}


OTHERS = {"scale": 0.3, "softcap": 1.5, "sink": SINK, "grouped": None, "value_dim": None, "broadcast": None}


NAMES = [*MASKS, *BIASES, *OTHERS]


PAIRS = [(a, b) for a, b in combinations(NAMES, 2) if not (a in BIASES and b in BIASES)]


def arguments(names, rng, make):
    """Return the arrays, the options of the call, and the same options for the oracle."""
    key_heads = 2 if "grouped" in names else H
    batch = 1 if "broadcast" in names else B
    query = rng.normal(size=(B, H, L, 4)) * 2
    key = rng.normal(size=(batch, key_heads, S, 4))
    value = rng.normal(size=(B, key_heads, S, 3 if "value_dim" in names else 4))
    masks = [MASKS[name] for name in names if name in MASKS]
    options, expected = {"query_offset": OFFSET}, {}
    if masks:
        mask, allowed = masks[0][0](make), masks[0][1]
        for more, more_allowed in masks[1:]:
            mask, allowed = mask & more(make), allowed & more_allowed
        options["mask"], expected["allowed"] = mask, allowed
    for name in names:
        if name in BIASES:
            options["bias"], expected["bias"] = BIASES[name][0](make), BIASES[name][1]
        elif name in ("scale", "softcap"):
            options[name] = expected[name] = OTHERS[name]
        elif name == "sink":
            options["sink"], expected["sink"] = make(SINK), SINK
    return (query, key, value), options, expected
