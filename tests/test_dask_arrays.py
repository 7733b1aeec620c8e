"""Attention on dask arrays: lazy, in blocks that the mask shows, in bounded memory, and equal to the oracle."""

import importlib
import math
import pickle
import re
import tracemalloc
from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

import mha_core as mha
import needs
from conftest import ROOT
from mha_core.conformance import oracle
from mha_core.conformance.cases.problems import random_problem
from mha_core.plugin import Mask
from test_pairs import NAMES, arguments
from together import for_each

pytestmark = needs.installed("mha_dask", "dask")
dask, da = map(needs.Library, ("dask", "dask.array"))
FOLDER = ROOT / "tests" / "third_party" / "mha-dask"


@pytest.fixture(autouse=True)
def _in_this_thread():
    """Compute in this thread, so that calls can be counted and memory be measured."""
    with dask.config.set(scheduler="synchronous"):
        yield


@pytest.fixture
def tasks():
    """The module of the functions that tasks call."""
    return importlib.import_module("mha_dask_attention")


def close(actual, expected, atol=1e-12):
    assert isinstance(actual, da.Array)
    np.testing.assert_allclose(actual.compute(), expected, rtol=0, atol=atol)


def in_chunks(size):
    return lambda x: da.from_array(x, chunks=tuple(min(size, n) if n else 1 for n in x.shape))


class Source:
    """Arrays (heads, length, width) that are made when they are read, one chunk at a time; counts what is read."""

    def __init__(self, length, chunk, *, heads=1, width=4, dtype=np.float64, allowed=None):
        self.length, self.chunk, self.allowed = length, chunk, allowed
        self.shape, self.dtype = (heads, chunk, width), dtype
        self.read = Counter()

    def chunk_of(self, name, at):
        assert self.allowed is None or at in self.allowed, f"chunk {at} of {name} is read"
        self.read[name, at] += 1
        return np.random.default_rng([at, len(name)]).normal(size=self.shape).astype(self.dtype)

    def lazy(self, name):
        chunks = (dask.delayed(self.chunk_of)(name, at) for at in range(self.length // self.chunk))
        return da.concatenate([da.from_delayed(x, self.shape, self.dtype) for x in chunks], axis=1)

    def numpy(self, name):
        return np.concatenate([self.chunk_of(name, at) for at in range(self.length // self.chunk)], axis=1)


# the numbers


@pytest.mark.parametrize("size", [1, 3, 7])
def test_random_problems_equal_the_oracle_in_any_chunks(rng, size):
    def check(own):
        problem = random_problem(own)
        out, lse, _ = oracle.attention(problem.query, problem.key, problem.value, **problem.oracle)
        make = in_chunks(size)
        state = mha.attention_state(*map(make, (problem.query, *problem.poisoned())), **problem.options(make))
        close(state.out, out)
        close(state.lse, lse)

    for_each({f"problem {at}": own for at, own in enumerate(rng.spawn(8))}, check)


@pytest.mark.parametrize("name", NAMES)
def test_every_option_equals_the_oracle(rng, name):
    make = in_chunks(4)
    arrays, options, expected = arguments((name,), rng, make)
    out, lse, _ = oracle.attention(*arrays, **expected)
    with mha.use_kernel("attention", "blocks"):
        state = mha.attention_state(*map(make, arrays), **options)
    close(state.out, out)
    close(state.lse, lse)


@pytest.mark.parametrize("name", ["alibi", "array", "either", "segments", "sink", "weight_dropout"])
def test_options_far_from_the_start_have_the_positions_of_the_whole(rng, name):
    query, key, value = (rng.normal(size=(2, 2, n, 3)) for n in (11, 17, 17))
    ids = np.sort(rng.integers(0, 4, size=(2, 17)))
    options = {
        "alibi": lambda make: {"bias": mha.alibi(2), "mask": mha.window(4, 2), "query_offset": 6},
        "array": lambda make: {
            "mask": make(np.tri(11, 17, 3, dtype=bool)) & ~mha.chunks(4),
            "query_offset": make(np.arange(2)),
        },
        "either": lambda make: {"mask": mha.prefix(5) | mha.window(2, 0), "query_offset": 6},
        "segments": lambda make: {"mask": mha.segments(make(ids[:, :11]), make(ids))},
        "sink": lambda make: {"sink": make(np.asarray([0.5, -math.inf])), "mask": mha.window(1, 0), "query_offset": -3},
        "weight_dropout": lambda make: {"weight_dropout": mha.weight_dropout(0.4, seed=3)},
    }[name]
    expected = mha.attention_state(query, key, value, **options(np.asarray))
    make = in_chunks(4)
    for actual, wanted in zip(mha.attention_state(*map(make, (query, key, value)), **options(make)), expected, strict=True):
        close(actual, wanted)


def test_each_chunk_of_the_batch_is_a_graph_of_its_own():
    x = da.ones((4, 2, 6, 3), chunks=(1, 2, 3, 3))
    out = mha.scaled_dot_product_attention(x, x, x, mask=mha.causal(), softcap=2.0)
    assert out.chunks == ((1, 1, 1, 1), (2,), (3, 3), (3,))
    close(out, np.ones(x.shape))


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_results_have_the_dtypes_of_every_backend(rng, dtype):
    x = rng.normal(size=(2, 9, 4)).astype(dtype)
    lazy = da.from_array(x, chunks=(2, 2, 4))
    state, expected = (mha.attention_state(each, each, each, mask=mha.causal()) for each in (lazy, x))
    assert (state.out.dtype, state.lse.dtype) == (dtype, np.float32) == (state.out.compute().dtype, state.lse.compute().dtype)
    close(state.out, expected.out, atol=2e-3 if dtype == "float16" else 1e-6)


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
    """Keys and values are 400 MB, in chunks of 2 MB."""
    source = Source(100 * 8192, 8192, width=64, dtype=np.float32)
    query = da.from_array(np.ones((1, 16, 64), np.float32), chunks=-1)
    out = mha.scaled_dot_product_attention(query, source.lazy("key"), source.lazy("value"), mask=mha.key_lengths(2**30))
    assert peak_of(out) < 40
    assert set(source.read.values()) == {1}


def test_keys_are_computed_again_for_each_chunk_of_queries_if_they_are_too_large_to_be_kept():
    """Keys and values are 64 MB, in chunks of 2 MB; there are three chunks of queries."""
    peaks, read = {}, {}
    for kept in ("1 GiB", "10 MB"):
        source = Source(32 * 4096, 4096, width=64, dtype=np.float32)
        query = da.ones((1, 48, 64), chunks=(1, 16, 64), dtype=np.float32)
        with dask.config.set({"mha_dask.kept": kept}):
            out = mha.scaled_dot_product_attention(query, source.lazy("key"), source.lazy("value"))
        peaks[kept], read[kept] = peak_of(out), set(source.read.values())
    assert read == {"1 GiB": {1}, "10 MB": {3}}
    assert peaks["10 MB"] < 24 < peaks["1 GiB"]


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


# layers


@pytest.mark.parametrize("norm_first", [True, False])
def test_layers_run_on_dask_arrays(rng, norm_first):
    encoder = mha.Encoder.init(
        d_model=8, num_heads=4, d_ff=16, num_layers=2, activation="gelu", norm_first=norm_first, seed=0, dtype="float64"
    )
    x, lengths = rng.normal(size=(3, 10, 8)), np.asarray([10, 4, 7])
    expected = encoder(x, mask=mha.causal() & mha.key_lengths(lengths))
    lazy = da.from_array(x, chunks=(2, 4, 8))
    out = encoder.to("dask")(lazy, mask=mha.causal() & mha.key_lengths(da.from_array(lengths)))
    close(out, expected)


def test_multi_head_attention_of_groups_with_rotary_positions(rng):
    rotary = mha.Rotary.init(max_length=16, dim=4, interleaved=False, dtype="float64")
    layer = mha.MultiHeadAttention.init(d_model=16, num_heads=4, num_kv_heads=2, seed=0, dtype="float64")
    layer = replace(layer, rotary=rotary)
    x = rng.normal(size=(2, 10, 16))
    close(layer.to("dask")(da.from_array(x, chunks=(1, 3, 16)), mask=mha.window(4, 0)), layer(x, mask=mha.window(4, 0)))


def test_gradients_are_lazy_too(rng):
    layer = mha.MultiHeadAttention.init(d_model=4, num_heads=2, seed=0, dtype="float64")
    x = rng.normal(size=(6, 4))

    def loss(layer, x):
        y = layer(x, mask=mha.causal())
        return y.__array_namespace__().sum(y * y)

    value, gradients = mha.value_and_grad(loss)(layer.to("dask"), da.from_array(x, chunks=(3, 4)))
    expected, wanted = mha.value_and_grad(loss)(layer, x)
    close(value, expected)
    for name, gradient in gradients.arrays().items():
        close(gradient, wanted.arrays()[name])


# errors


@pytest.mark.parametrize("frozen", [True, False])
def test_a_mask_of_the_users_own_with_arrays_must_be_a_frozen_dataclass(rng, frozen):
    @dataclass(frozen=frozen, eq=False)
    class Even(Mask):
        parity: Any

        def block(self, grid):
            return (grid.query_index + grid.key_index) % 2 == self.parity

    x = rng.normal(size=(1, 9, 4))
    lazy, parity = da.from_array(x, chunks=(1, 4, 4)), da.from_array(np.asarray([[1]]))
    if frozen:
        allowed = (np.arange(9)[:, None] + np.arange(9)) % 2 == 1
        close(
            mha.scaled_dot_product_attention(lazy, lazy, lazy, mask=Even(parity)), oracle.attention(x, x, x, allowed=allowed)[0]
        )
    else:
        with pytest.raises(TypeError, match="must be a frozen dataclass"):
            mha.scaled_dot_product_attention(lazy, lazy, lazy, mask=Even(parity))


def test_errors_say_what_to_write():
    x = da.ones((2, 6, 4), chunks=(2, 3, 4))
    some = x[:, da.ones(6, chunks=3) > 0]
    with pytest.raises(TypeError, match=r"key has the shape .*nan.* compute_chunk_sizes\(\)"):
        mha.scaled_dot_product_attention(x, some, some)
    some.compute_chunk_sizes()
    assert mha.scaled_dot_product_attention(x, some, some).shape == (2, 6, 4)
    with pytest.raises(
        mha.BackendMismatch, match=r"key is a numpy.ndarray, but query is a dask.array.core.Array: write key = "
    ):
        mha.scaled_dot_product_attention(x, np.ones((2, 6, 4)), x)
    with pytest.raises(TypeError, match="mask has dtype float64; expected a boolean array"):
        mha.scaled_dot_product_attention(x, x, x, mask=x[0, :, :1])
    with pytest.raises(ValueError, match="key has head_dim 3, but query has 4"):
        mha.scaled_dot_product_attention(x, x[..., :3], x)


def test_the_python_of_the_plugin_s_readme_runs():
    text = (FOLDER / "README.md").read_text(encoding="utf-8")
    (program,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    exec(compile(program, "README.md", "exec"), {})
