"""Attention on dask arrays equals the oracle, in any chunks and with every option, also inside layers."""

import math
from dataclasses import dataclass, replace
from typing import Any

import needs
import numpy as np
import pytest
from lazy_sources import close, da, dask, in_chunks
from together import for_each

import mha_core as mha
from mha_conformance import oracle
from mha_conformance.cases.problems import random_problem
from mha_core.plugin import Mask

pytestmark = needs.installed("mha_dask", "dask")


@pytest.fixture(autouse=True)
def _in_this_thread():
    """Compute in this thread, so that calls can be counted and memory be measured."""
    with dask.config.set(scheduler="synchronous"):
        yield


# the numbers


@pytest.mark.parametrize("size", [1, 3, 7])
def test_random_problems_equal_the_oracle_in_any_chunks(rng, size):
    def check(rng):
        problem = random_problem(rng)
        out, lse, _ = oracle.attention(problem.query, problem.key, problem.value, **problem.oracle)
        make = in_chunks(size)
        state = mha.attention_state(*map(make, (problem.query, *problem.poisoned())), **problem.options(make))
        close(state.out, out)
        close(state.lse, lse)

    for_each({f"problem {at}": each for at, each in enumerate(rng.spawn(8))}, check)


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


def test_gradients_equal_those_of_numpy(rng):
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


def test_a_shape_that_is_not_known_is_an_error_that_says_what_to_write():
    x = da.ones((2, 6, 4), chunks=(2, 3, 4))
    chosen = x[:, da.ones(6, chunks=3) > 0]
    with pytest.raises(TypeError, match=r"key has the shape .*nan.* compute_chunk_sizes\(\)"):
        mha.scaled_dot_product_attention(x, chosen, chosen)
    chosen.compute_chunk_sizes()
    assert mha.scaled_dot_product_attention(x, chosen, chosen).shape == (2, 6, 4)
