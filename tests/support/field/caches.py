"""Cells of docs/field.md about mha-core's caches, and the record of all such cells.

A check makes a library's cache do what its row says, and raises if it does not.
"""

import tracemalloc
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from needs import Library
from torch._dynamo.testing import CompileCounterWithBackend

import mha_core as mha
from field.probes import numbers

jax, jnp = map(Library, ("jax", "jax.numpy"))
COLUMNS = ("mha-core", "torch", "transformers", "ONNX", "x-transformers", "FlashInfer")
RUN = COLUMNS[:4]
"""The columns that the tests try."""

GROWS = "grows without a capacity"
IN_PLACE = "grows so, and a step copies no earlier position"
CAPACITY = "fixed capacity, written in place"
WINDOW = "holds a window alone"
PAGES = "pages"
LENGTHS = "a length for each sequence"
UNPADDED = "sequences not padded to the longest"
INT8 = "int8 with scales"
FP8 = "FP8 with scales"
NARROW = "attention reads int8 or FP8, not a widened copy"
SELECT = "sequences left out and repeated"
COMPILED = "a step compiled once for a capacity"

CELLS = {}
"""(feature, column) -> the cell's text and its check. A cell that is not here must be empty."""
READ = {(INT8, "transformers"): "yes", (NARROW, "torch"): "CUDA"}
"""Cells of these columns that are not run: one needs the package hqq, one a GPU."""


def cell(feature, column, text="yes"):
    """Register the check of a cell; a check of an empty cell shows what is missing."""

    def register(check):
        assert (feature, column) not in CELLS
        CELLS[feature, column] = text, check
        return check

    return register


def memory(x):
    """Return where the memory begins that an array or tensor is a view of, and its bytes."""
    if isinstance(x, np.ndarray):
        while isinstance(x.base, np.ndarray):
            x = x.base
        return x.__array_interface__["data"][0], x.nbytes
    storage = x.untyped_storage()
    return storage.data_ptr(), storage.nbytes()


def attention_layer(backend="numpy"):
    return mha.MultiHeadAttention.init(d_model=8, num_heads=2, seed=0, backend=backend)


def decode(rng, cache, mask=None, steps=40, atol=1e-5):
    """Decode step by step; return the keys that the cache held after each, once the results equal those of one pass."""
    layer, x, mask = attention_layer(), numbers(rng, 1, steps, 8), mha.causal() if mask is None else mask
    outputs, keys = [], []
    for at in range(steps):
        outputs.append(layer(x[:, at : at + 1], mask=mask, cache=cache))
        keys.append(cache.key)
    np.testing.assert_allclose(np.concatenate(outputs, axis=1), layer(x, mask=mask), atol=atol)
    return keys


@cell(GROWS, "mha-core")
def _(rng):
    assert decode(rng, mha.KeyValueCache())[-1].shape[-2] == 40


@cell(IN_PLACE, "mha-core")
def _(rng):
    assert len(set(map(memory, decode(rng, mha.KeyValueCache())))) < 8  # all are held, so no memory is used twice


@cell(CAPACITY, "mha-core")
def _(rng):
    cache = mha.KeyValueCache(capacity=40)
    assert len(set(map(memory, decode(rng, cache)))) == 1
    with pytest.raises(ValueError, match="capacity"):
        attention_layer()(numbers(rng, 1, 1, 8), mask=mha.causal(), cache=cache)


@cell(WINDOW, "mha-core")
def _(rng):
    keys = decode(rng, mha.KeyValueCache(window=4), mha.window(3, 0), steps=100)
    assert memory(keys[-1])[1] < 20 * keys[-1][..., :1, :].nbytes


@cell(LENGTHS, "mha-core")
@cell(UNPADDED, "mha-core")
def _(rng):
    layer, cache, mask = attention_layer(), mha.PackedCache(2), mha.causal()
    texts = numbers(rng, 7, 8), numbers(rng, 3, 8)
    layer(np.concatenate([texts[0][:6], texts[1][:2]]), mask=mask, cache=cache.next([6, 2]))
    step = layer(np.stack([text[-1] for text in texts]), mask=mask, cache=cache.next([1, 1]))
    for text, out, own in zip(texts, step, cache.sequences, strict=True):
        np.testing.assert_allclose(out, layer(text, mask=mask)[-1], atol=1e-5)
        assert own.key.shape[-2] == len(text)


@cell(INT8, "mha-core")
def _(rng):
    key = decode(rng, mha.KeyValueCache(dtype="int8"), atol=0.05)[-1]
    assert key.values.dtype == np.int8
    assert key.scale.shape == (*key.shape[:-1], 1)


@contextmanager
def one_thread():
    """Each thread has memory of its own for a block of keys."""
    mha.set_num_threads(1)
    try:
        yield
    finally:
        mha.set_num_threads(None)


@cell(NARROW, "mha-core", "NumPy, mha-native")
def _(rng):
    query, key, value = (numbers(rng, 1, 2, n, 64) for n in (1, 2**15, 2**15))
    rows = mha.quantize_rows(key), mha.quantize_rows(value)
    with one_thread():
        tracemalloc.start()
        try:
            out = mha.scaled_dot_product_attention(query, *rows)
            grown = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    np.testing.assert_allclose(out, mha.scaled_dot_product_attention(query, key, value), atol=1e-3)
    assert grown < key.nbytes / 2


@cell(SELECT, "mha-core")
def _(rng):
    layer, cache, mask, x = attention_layer(), mha.KeyValueCache(), mha.causal(), numbers(rng, 3, 6, 8)
    layer(x[:, :5], mask=mask, cache=cache)
    cache.select(np.asarray([1, 1, 0]))
    x = x[[1, 1, 0]]
    np.testing.assert_allclose(layer(x[:, 5:], mask=mask, cache=cache), layer(x, mask=mask)[:, 5:], atol=1e-5)


def compiled_by_torch(rng):
    graphs, layer, x = CompileCounterWithBackend("aot_eager"), attention_layer("torch"), torch.asarray(numbers(rng, 1, 8, 8))
    torch._dynamo.reset()
    step = torch.compile(lambda x, cache: layer(x, mask=mha.causal(), cache=cache), backend=graphs, fullgraph=True)
    cache, outputs, counts = mha.KeyValueCache(capacity=8), [], []
    with torch.no_grad():
        for at in range(8):
            outputs.append(step(x[:, at : at + 1], cache))
            counts.append(graphs.frame_count)
        torch.testing.assert_close(torch.cat(outputs, dim=1), layer(x, mask=mha.causal()))
    assert counts[1] == counts[-1]


@cell(COMPILED, "mha-core", "torch, JAX")
def _(rng):
    compiled_by_torch(rng)
    traced, layer, x = [], attention_layer("jax"), numbers(rng, 1, 8, 8)

    @jax.jit
    def step(x, cache):
        traced.append(x.shape)
        return layer(x, mask=mha.causal(), cache=cache), cache

    cache, outputs, counts = mha.KeyValueCache(capacity=8), [], []
    for at in range(8):
        out, cache = step(jnp.asarray(x[:, at : at + 1]), cache)
        outputs.append(out)
        counts.append(len(traced))
    np.testing.assert_allclose(np.concatenate(outputs, axis=1), attention_layer()(x, mask=mha.causal()), atol=1e-5)
    assert counts[1] == counts[-1]  # the first step may differ: the cache is empty
