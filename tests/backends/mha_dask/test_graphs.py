"""Attention on dask arrays computes nothing before it is asked to, no hidden block, and in bounded memory."""

import importlib
import pickle
import tracemalloc
from importlib import import_module

import needs
import numpy as np
import pytest
from lazy_sources import Source, close, da, dask

import mha_core as mha
from mha_conformance import oracle

pytestmark = needs.installed("mha_dask", "dask")


@pytest.fixture(autouse=True)
def _in_this_thread():
    """Compute in this thread, so that calls can be counted and memory be measured."""
    with dask.config.set(scheduler="synchronous"):
        yield


@pytest.fixture
def tasks():
    """The module of the functions that tasks call."""
    return importlib.import_module("mha_dask.attention")


# what is computed, and when


def test_nothing_is_computed_until_it_is_asked_for(rng):
    def fail(at):
        raise AssertionError(f"chunk {at} is computed")

    chunks = [da.from_delayed(dask.delayed(fail)(at), (2, 5, 4), np.float64) for at in range(3)]
    x = da.concatenate(chunks, axis=1)
    lengths = da.from_delayed(dask.delayed(fail)("lengths"), (), np.int64)
    masks = [
        None,
        mha.causal(),
        mha.window(3, 2),
        mha.key_lengths(7),
        mha.key_lengths(lengths),
        ~mha.chunks(4),
        x[0] @ x[0].T > 0,
    ]
    layer = mha.EncoderLayer.init(d_model=4, num_heads=2, d_ff=4, seed=0, dtype="float64").to("dask")
    for mask in masks:
        state = mha.attention_state(x, x, x, mask=mask, sink=x[:, 0, 0], bias=mha.alibi(2))
        assert state.out.shape == x.shape
        assert state.lse.shape == x.shape[:-1]
        if mask is not masks[-1]:
            layer(x, mask=mask)
    with pytest.raises(AssertionError, match="is computed"):
        state.out.compute()


HIDDEN = {
    "causal": (mha.causal(), slice(0, 40), {0, 1}),
    "window": (mha.window(15, 0), slice(60, 80), {2, 3}),
    "causal window": (mha.window(None, 0) & mha.window(3, None), slice(20, 40), {0, 1}),
    "key_lengths": (mha.key_lengths(25), slice(None), {0, 1}),
    "packed": (mha.packed([20, 40, 20]), slice(20, 40), {1, 2}),
    "chunks": (mha.chunks(20), slice(60, 80), {3}),
    "prefix": (mha.prefix(10) | mha.window(0, 0), slice(40, 60), {0, 2}),
    "not": (~mha.prefix(60), slice(None), {3}),
    "nothing": (mha.prefix(0), slice(None), set()),
}


@pytest.mark.parametrize("name", HIDDEN)
def test_keys_that_the_mask_hides_are_not_read(name):
    mask, rows, allowed = HIDDEN[name]
    source = Source(80, 20, allowed=allowed)
    query = np.random.default_rng(0).normal(size=(1, 80, 4))
    state = mha.attention_state(da.from_array(query, chunks=(1, 20, 4)), source.lazy("key"), source.lazy("value"), mask=mask)
    out, lse = (x[:, rows].compute() for x in state)
    assert {at for _, at in source.read} == allowed
    source.allowed = None
    expected = mha.attention_state(query, source.numpy("key"), source.numpy("value"), mask=mask)
    np.testing.assert_allclose(out, expected.out[:, rows], atol=1e-12)
    np.testing.assert_allclose(lse, expected.lse[:, rows], atol=1e-12)


def test_hidden_blocks_are_not_in_the_graph(monkeypatch, tasks):
    x, original, computed = da.ones((1, 64, 4), chunks=(1, 8, 4)), tasks._block_state, []
    monkeypatch.setattr(tasks, "_block_state", lambda *arguments: computed.append(None) or original(*arguments))
    for mask, expected in ((None, 64), (mha.causal(), 36), (mha.window(7, 0), 15), (mha.chunks(8), 8)):
        computed.clear()
        out = mha.scaled_dot_product_attention(x, x, x, mask=mask)
        assert not computed
        out.compute()
        assert len(computed) == expected


@pytest.mark.parametrize(("chunks", "depth"), [(1, 0), (2, 1), (5, 3), (16, 4), (17, 5)])
def test_states_are_merged_as_a_tree(monkeypatch, tasks, chunks, depth):
    original, depths, kept = tasks._merged, {}, []

    def merged(a, b):
        state = original(a, b)
        depths[id(state)] = 1 + max(depths.get(id(a), 0), depths.get(id(b), 0))
        kept.extend((a, b, state))  # so that no other state gets its id
        return state

    monkeypatch.setattr(tasks, "_merged", merged)
    x = np.random.default_rng(0).normal(size=(1, 3 * chunks, 2))
    key = da.from_array(x, chunks=(1, 3, 2))
    close(mha.scaled_dot_product_attention(da.from_array(x, chunks=-1), key, key), oracle.attention(x, x, x)[0])
    assert max(depths.values(), default=0) == depth
    assert len(depths) == chunks - 1


# memory


def peak_of(array):
    tracemalloc.start()
    try:
        array.compute()
        return tracemalloc.get_traced_memory()[1] / 2**20
    finally:
        tracemalloc.stop()


def test_few_queries_attend_to_keys_larger_than_memory():
    """Keys and values are 100 MB, in chunks of half a megabyte."""
    source = Source(100 * 2048, 2048, width=64, dtype=np.float32)
    query = da.from_array(np.ones((1, 16, 64), np.float32), chunks=-1)
    out = mha.scaled_dot_product_attention(query, source.lazy("key"), source.lazy("value"), mask=mha.key_lengths(2**30))
    assert peak_of(out) < 10
    assert set(source.read.values()) == {1}


def test_keys_are_computed_again_for_each_chunk_of_queries_if_they_are_too_large_to_be_kept():
    """Keys and values are 16 MB, in chunks of half a megabyte; there are three chunks of queries."""
    peaks, read = {}, {}
    for kept in ("1 GiB", "2.5 MB"):
        source = Source(32 * 1024, 1024, width=64, dtype=np.float32)
        query = da.ones((1, 48, 64), chunks=(1, 16, 64), dtype=np.float32)
        with dask.config.set({"mha_dask.kept": kept}):
            out = mha.scaled_dot_product_attention(query, source.lazy("key"), source.lazy("value"))
        peaks[kept], read[kept] = peak_of(out), set(source.read.values())
    assert read == {"1 GiB": {1}, "2.5 MB": {3}}
    assert peaks["2.5 MB"] < 6 < peaks["1 GiB"]


# where it is computed


def test_what_the_user_demands_is_about_dask_arrays_and_not_about_blocks(rng):
    x = rng.normal(size=(2, 6, 4))
    lazy = da.from_array(x, chunks=(2, 3, 4))
    with mha.use_backend("dask"), mha.use_kernel("attention", "blocks"):
        close(mha.scaled_dot_product_attention(lazy, lazy, lazy), oracle.attention(x, x, x)[0])


def test_a_graph_can_be_sent_to_another_process(rng):
    x, lengths = rng.normal(size=(2, 2, 6, 4)), np.asarray([2, 5])
    lazy, n = da.from_array(x, chunks=(2, 2, 3, 4)), da.from_array(lengths)
    bias = mha.relative_bias(da.ones((4, 2)), bidirectional=True, max_distance=4)
    out = mha.scaled_dot_product_attention(lazy, lazy, lazy, mask=~mha.chunks(2) & mha.key_lengths(n), bias=bias)
    q, k = np.arange(6)[:, None], np.arange(6)
    allowed = (q // 2 != k // 2) & (k < lengths[:, None, None, None])
    close(pickle.loads(needs.Library("cloudpickle").dumps(out)), oracle.attention(x, x, x, allowed=allowed)[0])


def test_threads_give_the_same_bits(rng):
    x = da.from_array(rng.normal(size=(2, 40, 4)), chunks=(2, 4, 4))
    out = mha.scaled_dot_product_attention(x, x, x, mask=mha.causal())
    with dask.config.set(scheduler="threads"):
        threaded = out.compute()
    assert threaded.tobytes() == out.compute().tobytes()


@pytest.mark.parametrize("name", ["zeros", "ones", "full", "asarray"])
def test_arrays_without_elements_are_made_whatever_their_other_axes(name):
    """Dask's own functions raise ZeroDivisionError for this shape."""
    xp, shape = import_module("mha_dask.namespace"), (64, 64, 0, 128)
    arguments = {"full": (shape, 1.0), "asarray": (np.empty(shape, dtype=np.float32),)}.get(name, (shape,))
    made = getattr(xp, name)(*arguments, dtype=xp.float32)
    assert made.shape == made.compute().shape == shape and made.dtype == np.float32
    some = getattr(xp, name)(*({"full": (3, 1.0), "asarray": ([1, 2, 3],)}.get(name, (3,))), dtype=xp.float32)
    assert some.compute().shape == (3,)
