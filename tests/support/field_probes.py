"""Rows of docs/field.md about options: a probe runs a library of field_peers and returns the text of its cell."""

import inspect

import numpy as np
import pytest
from field_peers import ATTEND, keras, torch

import mha_core as mha
from mha_conformance import oracle

PROBES = {}


def probe(feature):
    """Register the function for the cells of one row: (column, rng) -> the cell's text."""
    return lambda function: PROBES.setdefault(feature, function)


def numbers(rng, *shape, dtype=np.float32):
    return rng.normal(size=shape).astype(dtype)


def qkv(rng, heads=2, queries=4, keys=4):
    return numbers(rng, 1, heads, queries, 8), numbers(rng, 1, 2, keys, 8), numbers(rng, 1, 2, keys, 8)


def gives(column, arrays, expected, **options):
    """Return "yes" if the library has the options, once its result agrees with the oracle's; "" if it lacks an option."""
    if not set(options) <= set(inspect.signature(ATTEND[column]).parameters):
        return ""
    out = ATTEND[column](*arrays, **options)
    np.testing.assert_allclose(out, oracle.attention(*arrays, **expected)[0], atol=1e-5)
    return "yes"


# options of several libraries


@probe("grouped-query heads")
def _(column, rng):
    return gives(column, qkv(rng, heads=6), {})


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


@probe("sliding window")
def _(column, rng):
    if column == "Keras":  # the layer has this option, the operation does not
        layer = keras.layers.MultiHeadAttention(num_heads=2, key_dim=4, sliding_window=2)
        band = torch.from_numpy((np.abs(np.arange(4)[:, None] - np.arange(4)) < 2)[None])
        x = torch.from_numpy(numbers(rng, 1, 4, 8))
        alone = layer(x, x).detach()
        layer._sliding_window = None
        np.testing.assert_allclose(layer(x, x, attention_mask=band).detach(), alone, atol=1e-5)
        return "layer"
    distance = np.arange(4) - np.arange(4)[:, None]
    return gives(column, qkv(rng), {"allowed": (distance >= -2) & (distance <= 1)}, window=(2, 1))


@probe("key lengths")
def _(column, rng):
    return gives(column, qkv(rng), {"allowed": np.arange(4) < 3}, lengths=np.asarray([3]))


@probe("boolean array mask")
def _(column, rng):
    mask = rng.random((1, 1, 4, 4)) < 0.6
    mask[..., 0] = True
    return gives(column, qkv(rng), {"allowed": mask}, mask=mask)


@probe("causal with a mask")
def _(column, rng):
    mask = rng.random((1, 1, 4, 4)) < 0.6
    mask[..., 0] = True
    arrays, expected = qkv(rng), {"allowed": mask & np.tri(4, dtype=bool)}
    cell = gives(column, arrays, expected, mask=mask, causal=True)
    if column == "torch SDPA":
        with (
            torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH),
            pytest.raises(RuntimeError, match="should not be set"),
        ):
            gives(column, arrays, expected, mask=mask, causal=True)
        return "depends on path"
    return cell


@probe("array bias")
def _(column, rng):
    bias = numbers(rng, 1, 2, 4, 4)
    return gives(column, qkv(rng), {"bias": bias}, bias=bias)


@probe("bias with a mask")
def _(column, rng):
    mask, bias = np.tri(4, dtype=bool)[None, None], numbers(rng, 1, 2, 4, 4)
    if column in ("torch SDPA", "ONNX"):
        return ""  # one argument for both
    if column == "Keras":
        with pytest.raises(ValueError, match="Only one of"):
            ATTEND[column](*qkv(rng), bias=bias, mask=mask)
        return ""
    return gives(column, qkv(rng), {"allowed": mask, "bias": bias}, bias=bias, mask=mask)


@probe("softcap")
def _(column, rng):
    if column == "Keras":
        with pytest.raises(ValueError, match="only supported for JAX on TPU"):
            ATTEND[column](*qkv(rng), softcap=1.0)
        return "TPU"
    return gives(column, qkv(rng), {"softcap": 1.0}, softcap=1.0)


@probe("sink")
def _(column, rng):
    sink = numbers(rng, 2)
    return gives(column, qkv(rng), {"sink": sink}, sink=sink)


@probe("values of a different width")
def _(column, rng):
    query, key, value = qkv(rng)
    if column == "jax.nn":
        with pytest.raises(ValueError, match="value shape should be"):
            ATTEND[column](query, key, value[..., :5])
        return ""
    return gives(column, (query, key, value[..., :5]), {})


# options of mha-core only: a test checks the arguments of the other libraries, and none of them is such an option


def only_ours(check):
    def cell(column, rng):
        if column != "mha-core":
            return ""
        check(rng)
        return "yes"

    return cell


@probe("masks combined by and, or, not")
@only_ours
def _(rng):
    arrays, q, k = qkv(rng), np.arange(4)[:, None], np.arange(4)
    mask = (mha.causal() | mha.prefix(2)) & ~mha.window(0, 0)
    allowed = ((k <= q) | (k < 2)) & (k != q)
    out = mha.scaled_dot_product_attention(*arrays, mask=mask)
    np.testing.assert_allclose(out, oracle.attention(*arrays, allowed=allowed)[0], atol=1e-5)


@probe("packed sequences")
@only_ours
def _(rng):
    arrays = qkv(rng)
    out = mha.scaled_dot_product_attention(*arrays, mask=mha.packed([3, 1]))
    for part in (slice(0, 3), slice(3, 4)):
        expected = oracle.attention(*(x[..., part, :] for x in arrays))[0]
        np.testing.assert_allclose(out[..., part, :], expected, atol=1e-5)


@probe("ALiBi")
@only_ours
def _(rng):
    arrays, distance = qkv(rng), np.abs(np.arange(4) - np.arange(4)[:, None])
    bias = -np.asarray([2.0**-4, 2.0**-8])[:, None, None] * distance
    out = mha.scaled_dot_product_attention(*arrays, bias=mha.alibi(2))
    np.testing.assert_allclose(out, oracle.attention(*arrays, bias=bias)[0], atol=1e-5)


@probe("relative bias of T5")
@only_ours
def _(rng):
    arrays, table = qkv(rng), numbers(rng, 32, 2)
    bias = mha.relative_bias(table, bidirectional=True, max_distance=128)
    distance = np.arange(4) - np.arange(4)[:, None]
    bucket = np.where(distance > 0, 16, 0) + np.abs(distance)  # short distances have a bucket each
    expected = oracle.attention(*arrays, bias=np.moveaxis(table[bucket], -1, 0))[0]
    np.testing.assert_allclose(mha.scaled_dot_product_attention(*arrays, bias=bias), expected, atol=1e-5)


@probe("merges states over parts of the keys")
@only_ours
def _(rng):
    query, key, value = qkv(rng)
    parts = [mha.attention_state(query, key[..., s, :], value[..., s, :]) for s in (slice(0, 1), slice(1, 4))]
    np.testing.assert_allclose(mha.merge_states(*parts).out, oracle.attention(query, key, value)[0], atol=1e-5)


@probe("weights of some rows and columns")
@only_ours
def _(rng):
    query, key, value = qkv(rng)
    lse = mha.attention_state(query, key, value).lse
    weights = oracle.attention(query, key, value)[2]
    np.testing.assert_allclose(mha.attention_weights(query, key, lse, rows=[2], cols=[1]), weights[..., 2:3, 1:2], atol=1e-5)
