"""Rows of docs/field.md about options: a probe runs a library of field.peers and returns the text of its cell."""

import inspect
from functools import partial

import numpy as np
import pytest

import mha_core as mha
from field.peers import ATTEND, keras, torch
from mha_conformance import oracle

PROBES = {}
CAUSAL = np.tri(4, dtype=bool)
DISTANCE = np.arange(4) - np.arange(4)[:, None]


def probe(feature):
    """Register the function for the cells of one row: (column, rng) -> the cell's text."""
    return lambda function: PROBES.setdefault(feature, function)


def numbers(rng, *shape, dtype=np.float32):
    return rng.normal(size=shape).astype(dtype)


def qkv(rng, heads=2, queries=4, keys=4, width=8):
    return numbers(rng, 1, heads, queries, 8), numbers(rng, 1, 2, keys, 8), numbers(rng, 1, 2, keys, width)


def equal(actual, arrays, **expected):
    np.testing.assert_allclose(actual, oracle.attention(*arrays, **expected)[0], atol=1e-5)


# options of several libraries

_RNG = np.random.default_rng(0)
MASK = (_RNG.random((1, 1, 4, 4)) < 0.6) | (np.arange(4) == 0)  # every query sees the first key
BIAS, SINK = numbers(_RNG, 1, 2, 4, 4), numbers(_RNG, 2)
OPTIONS = {
    "grouped-query heads": ({"heads": 6}, {}, {}),
    "sliding window": ({}, {"allowed": (DISTANCE >= -2) & (DISTANCE <= 1)}, {"window": (2, 1)}),
    "key lengths": ({}, {"allowed": np.arange(4) < 3}, {"lengths": np.asarray([3])}),
    "boolean array mask": ({}, {"allowed": MASK}, {"mask": MASK}),
    "causal with a mask": ({}, {"allowed": MASK & CAUSAL}, {"mask": MASK, "causal": True}),
    "array bias": ({}, {"bias": BIAS}, {"bias": BIAS}),
    "bias with a mask": ({}, {"allowed": CAUSAL, "bias": BIAS}, {"bias": BIAS, "mask": CAUSAL[None, None]}),
    "softcap": ({}, {"softcap": 1.0}, {"softcap": 1.0}),
    "sink": ({}, {"sink": SINK}, {"sink": SINK}),
    "values of a different width": ({"width": 5}, {}, {}),
}
"""Sizes of query, key and value; what the oracle is told; and the options of a library that say the same."""


def gives(column, feature, rng):
    """Return "yes" if the library has the options, once its result agrees with the oracle's; "" if it lacks an option."""
    sizes, expected, options = OPTIONS[feature]
    if not set(options) <= set(inspect.signature(ATTEND[column]).parameters):
        return ""
    arrays = qkv(rng, **sizes)
    equal(ATTEND[column](*arrays, **options), arrays, **expected)
    return "yes"


def refuses(column, feature, message, error=ValueError):
    """Return a probe of an option that the library has an argument for, and refuses."""

    def probe(rng):
        sizes, _, options = OPTIONS[feature]
        with pytest.raises(error, match=message):
            ATTEND[column](*qkv(rng, **sizes), **options)
        return ""

    return probe


def window_of_a_layer(rng):
    """Keras's layer has this option, its operation does not."""
    layer = keras.layers.MultiHeadAttention(num_heads=2, key_dim=4, sliding_window=2)
    x = torch.from_numpy(numbers(rng, 1, 4, 8))
    alone = layer(x, x).detach()
    layer._sliding_window = None
    np.testing.assert_allclose(
        layer(x, x, attention_mask=torch.from_numpy((np.abs(DISTANCE) < 2)[None])).detach(), alone, atol=1e-5
    )
    return "layer"


def refused_on_a_path(rng):
    """Another path of torch takes a mask with causal."""
    gives("torch SDPA", "causal with a mask", rng)
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        refuses("torch SDPA", "causal with a mask", "should not be set", RuntimeError)(rng)
    return "depends on path"


EXCEPTIONS = {
    ("Keras", "sliding window"): window_of_a_layer,
    ("torch SDPA", "causal with a mask"): refused_on_a_path,
    ("torch SDPA", "bias with a mask"): lambda rng: "",  # one argument for both
    ("ONNX", "bias with a mask"): lambda rng: "",
    ("Keras", "bias with a mask"): refuses("Keras", "bias with a mask", "Only one of"),
    ("Keras", "softcap"): lambda rng: refuses("Keras", "softcap", "only supported for JAX on TPU")(rng) or "TPU",
    ("jax.nn", "values of a different width"): refuses("jax.nn", "values of a different width", "value shape should be"),
}


def option(column, rng, *, feature):
    """Return the text of a cell in the row of an option."""
    exception = EXCEPTIONS.get((column, feature))
    return gives(column, feature, rng) if exception is None else exception(rng)


PROBES |= {feature: partial(option, feature=feature) for feature in OPTIONS}


@probe("causal, L ≠ S: aligned at")
def _(column, rng):
    arrays, q, k = qkv(rng, queries=2), np.arange(2)[:, None], np.arange(4)
    if column == "mha-core":
        with pytest.raises(ValueError, match="query_offset"):
            ATTEND[column](*arrays, causal=True)
        return "must be given"
    out = ATTEND[column](*arrays, causal=True)
    at_start, at_end = (oracle.attention(*arrays, allowed=k <= q + offset)[0] for offset in (0, 2))
    assert np.allclose(out, at_start, atol=1e-5) != np.allclose(out, at_end, atol=1e-5)
    return "start" if np.allclose(out, at_start, atol=1e-5) else "end"


# options of mha-core only: a test checks the arguments of the other libraries, and none of them is such an option


def only_ours(feature):
    """Register a check of mha-core on (query, key, value) for the cells of a row that is empty for all others."""
    return lambda check: probe(feature)(lambda column, rng: check(qkv(rng), rng) or "yes" if column == "mha-core" else "")


@only_ours("masks combined by and, or, not")
def _(arrays, rng):
    mask = (mha.causal() | mha.prefix(2)) & ~mha.window(0, 0)
    allowed = (CAUSAL | (np.arange(4) < 2)) & (DISTANCE != 0)
    equal(mha.scaled_dot_product_attention(*arrays, mask=mask), arrays, allowed=allowed)


@only_ours("packed sequences")
def _(arrays, rng):
    sequence = np.asarray([0, 0, 0, 1])
    out = mha.scaled_dot_product_attention(*arrays, mask=mha.packed([3, 1]))
    equal(out, arrays, allowed=sequence[:, None] == sequence)


@only_ours("ALiBi")
def _(arrays, rng):
    bias = -np.asarray([2.0**-4, 2.0**-8])[:, None, None] * np.abs(DISTANCE)
    equal(mha.scaled_dot_product_attention(*arrays, bias=mha.alibi(2)), arrays, bias=bias)


@only_ours("relative bias of T5")
def _(arrays, rng):
    table = numbers(rng, 32, 2)
    bias = mha.relative_bias(table, bidirectional=True, max_distance=128)
    bucket = np.where(DISTANCE > 0, 16, 0) + np.abs(DISTANCE)  # short distances have a bucket each
    equal(mha.scaled_dot_product_attention(*arrays, bias=bias), arrays, bias=np.moveaxis(table[bucket], -1, 0))


@only_ours("merges states over parts of the keys")
def _(arrays, rng):
    query, key, value = arrays
    parts = [mha.attention_state(query, key[..., s, :], value[..., s, :]) for s in (slice(0, 1), slice(1, 4))]
    equal(mha.merge_states(*parts).out, arrays)


@only_ours("weights of some rows and columns")
def _(arrays, rng):
    query, key, _ = arrays
    lse, weights = mha.attention_state(*arrays).lse, oracle.attention(*arrays)[2]
    np.testing.assert_allclose(mha.attention_weights(query, key, lse, rows=[2], cols=[1]), weights[..., 2:3, 1:2], atol=1e-5)
