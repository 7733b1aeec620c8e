"""Layers against the same formulas in NumPy float64, and conversion of layers between libraries."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

import mha_core as mha

from .cases.layer_problem import SMALL, plain_layer_problem, stack_problem
from .judge.held import Judge
from .oracle import attention
from .oracle.tolerance import UNIT_ROUNDOFF

pytestmark = pytest.mark.promise(0, 9)
NORM_FIRST = pytest.mark.parametrize("norm_first", [False, True], ids=["post-norm", "pre-norm"])


@pytest.mark.parametrize("kv_heads", [4, 2, 1])
def test_multi_head_attention(judge: Judge, kv_heads: int) -> None:
    heads = {"kv_heads": kv_heads, "groups": 4 // kv_heads, "kv_heads given": True}
    options = {"context": "context", "queries": 5, "keys": 7, "array": "scores"}
    judge.judge_once(plain_layer_problem("multi_head_attention", judge.rng, **heads, **options))


@pytest.mark.parametrize("activation", ["relu", "gelu", "silu"])
@NORM_FIRST
def test_encoder(judge: Judge, norm_first: bool, activation: str) -> None:
    if judge.quick and norm_first and activation != "gelu":
        pytest.skip("quick runs judge one activation with pre-norm")
    made = mha.Encoder.init(**SMALL, num_layers=2, activation=activation, norm_first=norm_first, seed=2)
    for band in ("none", "causal"):
        judge.judge_once(stack_problem("encoder", made, judge.rng, band=band))


@NORM_FIRST
def test_decoder_at_once_and_step_by_step(judge: Judge, norm_first: bool) -> None:
    """Steps of one position, and of random numbers of them."""
    made = mha.Decoder.init(**SMALL, num_layers=2, norm_first=norm_first, seed=3)
    problem = stack_problem("decoder", made, judge.rng, queries=5, memory=7)
    arrays, floats = judge.arrays(problem)
    decoder, y, memory = problem.with_weights(arrays), arrays["x"], arrays["memory"]
    judge.assert_right({"decoder": decoder(y, memory)}, y, problem, floats)
    for cuts in (range(1, 5), sorted(judge.rng.choice(range(1, 5), 2, replace=False).tolist())):
        cache = mha.DecoderCache()
        steps = [decoder(y[start:stop, :], memory, cache=cache) for start, stop in pairwise([0, *cuts, 5])]
        judge.assert_right({"decoder": judge.xp.concat(steps, axis=0)}, y, problem, floats)


def test_sequences_of_a_packed_cache_are_each_as_in_one_pass(judge: Judge) -> None:
    """A causal encoder takes steps of random numbers of positions of two sequences, and none of some."""
    made = mha.Encoder.init(**SMALL, num_layers=2, seed=2)
    problems = [stack_problem("encoder", made, judge.rng, band="causal", queries=length) for length in (5, 3)]
    same_weights = problems[0].floats | {"x": problems[1].floats["x"]}
    problems[1] = replace(problems[1], floats=same_weights, layer=problems[0].layer)
    arrays, floats = zip(*map(judge.arrays, problems), strict=True)
    encoder, sequences = problems[0].with_weights(arrays[0]), [each["x"] for each in arrays]
    caches = [mha.PackedCache(2) for _ in encoder.layers]
    at, parts = [0, 0], [list[Any](), list[Any]()]
    while (left := [x.shape[0] - start for x, start in zip(sequences, at, strict=True)]) != [0, 0]:
        lengths = [min(n, int(judge.rng.integers(0, 3))) for n in left]
        if not any(lengths):
            continue
        ends = [start + n for start, n in zip(at, lengths, strict=True)]
        x = judge.xp.concat([x[i:j, :] for x, i, j in zip(sequences, at, ends, strict=True)], axis=0)
        for layer, cache in zip(encoder.layers, caches, strict=True):
            x = layer(x, mask=mha.causal(), cache=cache.next(lengths))
        parts[0].append(x[: lengths[0], :])
        parts[1].append(x[lengths[0] :, :])
        at = ends
    for part, x, problem, these in zip(parts, sequences, problems, floats, strict=True):
        judge.assert_right({"encoder": judge.xp.concat(part, axis=0)}, x, problem, these)


@pytest.mark.parametrize("kind", ["grows", "capacity", "whole capacity"])
def test_a_schedule_of_steps_and_selections_is_one_pass(wide: Judge, kind: str) -> None:
    """Before each step some sequences are taken out and others repeated; the last have the numbers of one pass of each."""
    made = mha.Encoder.init(**SMALL, num_layers=2, seed=7).to(wide.name, device=wide.device, dtype=wide.dtype)
    length = int(wide.rng.integers(4, 10))
    x = wide.normal((3, length, SMALL["d_model"]))
    capacity = None if kind == "grows" else length + int(wide.rng.integers(0, 3))
    cache = mha.DecoderCache(capacity=capacity)
    if kind == "whole capacity":  # as in a compiled function: the number of positions is an array
        filled = wide.array(np.zeros((), dtype=np.int64))
        cache.layers = [(mha.KeyValueCache(capacity=capacity, filled=filled), mha.KeyValueCache()) for _ in made.layers]
    cuts = [0, *sorted(wide.rng.choice(range(1, length), 3, replace=False).tolist()), length]
    out = np.zeros((3, 0, SMALL["d_model"]))
    for start, stop in pairwise(cuts):
        if start and wide.rng.random() < 0.7:
            at = wide.rng.integers(0, len(x), size=int(wide.rng.integers(1, 4)))
            cache.select(wide.array(at))
            x, out = x[at], out[at]
        step = made(wide.array(x[:, start:stop]), mask=mha.causal(), cache=cache)
        out = np.concatenate([out, wide.numpy(step)], axis=1)
    expected = wide.numpy(made(wide.array(x), mask=mha.causal()))
    np.testing.assert_allclose(out, expected, rtol=0, atol=512 * UNIT_ROUNDOFF[wide.dtype] * np.abs(expected).max())
    assert int(cache.length) == length


def test_a_cache_in_int8_attends_to_rows_that_are_half_a_step_away_at_most(wide: Judge) -> None:
    """Positions come in steps of random numbers of them, and with a window are dropped."""
    layer = mha.MultiHeadAttention.init(d_model=SMALL["d_model"], num_heads=4, num_kv_heads=2, seed=6).to(
        wide.name, device=wide.device, dtype=wide.dtype
    )
    x, window = wide.array(wide.normal((9, SMALL["d_model"]))), int(wide.rng.integers(3, 10))
    cuts = [0, *sorted(wide.rng.choice(range(1, 9), 3, replace=False).tolist()), 9]
    caches = [mha.KeyValueCache(window=window, dtype=dtype) for dtype in (None, "int8")]
    for start, stop in pairwise(cuts):
        rows = x[start:stop, :]
        _, out = (layer(rows, mask=mha.window(window - 1, 0), cache=cache) for cache in caches)
    held = []
    for name in ("key", "value"):
        exact, rounded = (getattr(cache, name) for cache in caches)
        scale = wide.numpy(rounded.scale)
        held.append(wide.numpy(rounded.values) * scale.astype(np.float64))
        assert np.all(np.abs(held[-1] - wide.numpy(exact)) <= scale * (0.5 + 127 * 64 * UNIT_ROUNDOFF[wide.dtype]))
    queries, keys = stop - start, held[0].shape[-2]
    weights = {name: wide.numpy(w).astype(np.float64) for name, w in layer.arrays().items()}
    heads = (wide.numpy(rows) @ weights["w_q"] + weights["b_q"]).reshape(queries, 4, -1).swapaxes(0, 1)
    distance = np.arange(keys) - np.arange(keys - queries, keys)[:, None]
    attended, _, _ = attention(heads, *held, allowed=(distance <= 0) & (distance > -window))
    expected = attended.swapaxes(0, 1).reshape(queries, -1) @ weights["w_o"] + weights["b_o"]
    np.testing.assert_allclose(wide.numpy(out), expected, rtol=0, atol=512 * UNIT_ROUNDOFF[wide.dtype] * np.abs(expected).max())


def test_layers_are_made_on_the_backend(wide: Judge) -> None:
    """The same seed gives the same numbers on every backend."""
    made = mha.EncoderLayer.init(**SMALL, seed=4, backend=wide.name, dtype=wide.dtype, device=wide.device)
    expected = mha.EncoderLayer.init(**SMALL, seed=4, backend="numpy", dtype=wide.dtype).arrays()
    like = wide.array(np.zeros(1))
    for name, x in made.arrays().items():
        wide.assert_like(x, like)
        np.testing.assert_array_equal(wide.numpy(x), expected[name])


def test_a_layer_travels_to_numpy_and_back(wide: Judge) -> None:
    there = mha.EncoderLayer.init(**SMALL, seed=5, backend=wide.name, dtype=wide.dtype, device=wide.device)
    back = there.to("numpy").to(wide.name, device=wide.device)
    for name, x in back.arrays().items():
        wide.assert_like(x, there.arrays()[name])
        np.testing.assert_array_equal(wide.numpy(x), wide.numpy(there.arrays()[name]))
