"""Gradients of layers, and of functions of operations, by ``mha.vjp``, against the chain of the gradients of their steps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import mha_core as mha
from mha_core.plugin import Kernel
from mha_core.shared import ALGEBRA, FEATURES, LAYER_VJPS

from .cases.layer_gradients import gradients_of
from .cases.layer_problem import SMALL, stack_problem
from .cases.piece_gradients import PieceGradientProblem
from .judge.designed import judge_design
from .judge.held import Judge
from .oracle.attention_gradients import merge_gradients
from .oracle.layers import Layers, bounded
from .oracle.steps import Named
from .oracle.tolerance import assert_within

SECTION = "gradients"
pytestmark = pytest.mark.promise(0, 9)
NORM_FIRST = pytest.mark.parametrize("norm_first", [False, True], ids=["post-norm", "pre-norm"])


@pytest.mark.promise(0, 12, 14)
def test_a_kernel_of_a_layer_on_calls_of_a_covering_design(judge: Judge, layer_vjp_kernel: Kernel) -> None:
    judge_design(judge, layer_vjp_kernel.op, layer_vjp_kernel.name, layer_vjp_kernel.handles).assert_computed()


@pytest.mark.promise(0, 12, 14)
@pytest.mark.parametrize("op", LAYER_VJPS)
def test_the_algebra_on_calls_of_a_covering_design(judge: Judge, op: str) -> None:
    """A quick run judges a tenth: the gradients of the steps are judged too."""
    judge_design(judge, op, ALGEBRA, FEATURES[op], part=0.1 if judge.quick else 1.0).assert_computed()


@NORM_FIRST
def test_encoder(judge: Judge, norm_first: bool) -> None:
    made = mha.Encoder.init(**SMALL, num_layers=2, activation="gelu", norm_first=norm_first, seed=5)
    judge.judge_once(gradients_of(stack_problem("encoder", made, judge.rng), judge.rng))


@NORM_FIRST
@pytest.mark.parametrize("layers", [1, 2])
def test_decoder(judge: Judge, norm_first: bool, layers: int) -> None:
    """One layer, and a stack, whose layers read one memory: its gradients are summed."""
    if judge.quick and norm_first != (layers == 2):
        pytest.skip("quick runs judge one layer with post-norm, and two with pre-norm")
    settings: dict[str, Any] = {**SMALL, "activation": "gelu", "norm_first": norm_first, "seed": 6}
    made = mha.DecoderLayer.init(**settings) if layers == 1 else mha.Decoder.init(**settings, num_layers=layers)
    op = "decoder_layer" if layers == 1 else "decoder"
    judge.judge_once(gradients_of(stack_problem(op, made, judge.rng, queries=5, memory=7), judge.rng))


def test_frozen_weights_have_no_gradients(wide: Judge) -> None:
    """``wrt`` chooses weights by their dotted names; the others' gradients are the same numbers."""
    problem = gradients_of(stack_problem("encoder", mha.Encoder.init(**SMALL, num_layers=2, seed=7), wide.rng), wide.rng)
    arrays, _ = wide.arrays(problem)
    there, x, d_out = problem.with_weights(arrays), arrays["x"], arrays["d_out"]
    every = mha.vjp(there, x)[1](d_out)
    some = mha.vjp(there, x, wrt=lambda name: name.startswith("layers.1.") and name.endswith(("w_q", "bias")))[1](d_out)
    wanted = {name for name in there.arrays() if name.startswith("layers.1.") and name.endswith(("w_q", "bias"))}
    assert some[0].arrays().keys() == wanted
    for name in wanted:
        x, y = (wide.numpy(gradient[0].arrays()[name]) for gradient in (every, some))
        np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6)


# pieces and functions


def test_dropout(judge: Judge) -> None:
    """Where x was dropped, the gradient is exactly 0; that of ``keep`` is None."""
    floats, keep = {name: judge.rng.normal(size=(3, 40)) for name in ("x", "d")}, judge.rng.random((3, 40)) < 0.5
    row = {"layout": "contiguous"}
    judge.judge_once(PieceGradientProblem(row, floats, {"keep": keep}, op="dropout", options={"rate": 0.25}))


def test_merged_states(judge: Judge) -> None:
    """Three states are merged, one of which is over no keys in some rows."""
    wide = "float64" if judge.dtype == "float64" else "float32"
    outs = [judge.normal((2, 5, 4)) for _ in range(3)]
    lses = [judge.rounded(3 * judge.rng.normal(size=(2, 5)), wide) for _ in range(3)]
    outs[1][:, 2], lses[1][:, 2] = 0, -np.inf
    d_out, d_lse = judge.normal((2, 5, 4)), judge.rounded(judge.rng.normal(size=(2, 5)), wide)
    states = [mha.AttentionState(judge.array(out), judge.array(lse, wide)) for out, lse in zip(outs, lses, strict=True)]
    _, pullback = mha.vjp(mha.merge_states, *states)
    gradients = pullback(mha.AttentionState(judge.array(d_out), judge.array(d_lse, wide)))
    expected = merge_gradients(outs, lses, d_out, d_lse, dtype=judge.dtype)
    for state, gradient, (of_out, of_lse) in zip(states, gradients, expected, strict=True):
        judge.assert_like(gradient.out, state.out)
        judge.assert_like(gradient.lse, state.lse)
        assert_within("merge_states_vjp d_out", judge.numpy(gradient.out), *of_out)
        assert_within("merge_states_vjp d_lse", judge.numpy(gradient.lse), *of_lse)


def test_a_function_of_operations(wide: Judge) -> None:
    """An argument that is used twice has the sum of both gradients; one that is used nowhere has zeros."""
    x, w, unused, d = (wide.normal(shape) for shape in ((5, 8), (8, 8), (3,), (5, 8)))

    def function(x: Any, w: Any, unused: Any) -> Any:
        y = mha.linear(x, w)
        return mha.linear(mha.scaled_dot_product_attention(y, x, mha.gelu(y)), w)

    arrays = [wide.array(each) for each in (x, w, unused)]
    d_x, d_w, nothing = mha.vjp(function, *arrays)[1](wide.array(d))

    def expected_of(layers: Layers) -> Named:
        y = layers.linear(x, w, None)
        query, key, value = (layers.heads(each, 1) for each in (y, x, layers.activation("gelu", y)))
        out = layers.linear(layers.joined(layers.attention(query, key, value)), w, None)
        return layers.gradients(out, d, of={"x": x, "w": w})

    expected = bounded(expected_of, wide.dtype, rounds_weights=wide.rounds_weights, rng=wide.rng)
    assert_within("layers_vjp d_x", wide.numpy(d_x), *expected["x"])
    assert_within("layers_vjp d_w", wide.numpy(d_w), *expected["w"])
    assert tuple(nothing.shape) == (3,) and not wide.numpy(nothing).any()


# sums that only a wider dtype gets right


@pytest.mark.parametrize("sum_over", ["queries", "rows of w", "rows of b", "rows of a norm", "ids", "pairs of a bias"])
def test_many_gradients_are_summed_in_float32(judge: Judge, sum_over: str) -> None:
    """4096 equal terms of 1: a sum of ones stops at 2048 in float16, at 256 in bfloat16."""
    many, one = judge.array(np.ones((4096, 1))), judge.array(np.ones((1, 1)))
    if sum_over == "queries":
        gradient = mha.vjp(mha.scaled_dot_product_attention, many, one, one)[1](many)[2]
    elif sum_over == "pairs of a bias":
        _, pullback = mha.vjp(mha.attention_state, many, one, one, bias=judge.array(np.zeros((1, 1))))
        wide = judge.array(np.ones(4096), "float64" if judge.dtype == "float64" else "float32")
        gradient = pullback(mha.AttentionState(judge.xp.zeros_like(many), wide)).options["bias"]
    elif sum_over == "ids":
        ids = judge.array(np.zeros(4096, dtype=np.int64))
        gradient = mha.vjp(mha.embedding, ids, one)[1](many)[1]
    elif sum_over == "rows of a norm":
        weight = judge.array(np.ones(1))
        gradient = mha.vjp(mha.layer_norm, many, weight, weight)[1](many)[2]
    else:
        gradients = mha.vjp(mha.linear, many, one, judge.array(np.zeros(1)))[1](many)
        gradient = gradients[1 if sum_over == "rows of w" else 2]
    assert (judge.numpy(gradient) == 4096).all(), f"the sum of 4096 ones is {judge.numpy(gradient).ravel()[0]:g}"
