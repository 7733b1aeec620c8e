"""Gradients of layers, and of functions of operations, by ``mha.vjp``, against the chain of the gradients of their steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import pytest

import mha_core as mha

from .cases.piece_gradients import PieceGradientProblem
from .judge.held import Judge
from .judge.layers import SMALL, perturbed
from .oracle.attention_gradients import merge_gradients
from .oracle.layers import Layers, bounded
from .oracle.steps import Named
from .oracle.tolerance import assert_within
from .probes.computed_by import ComputedBy

SECTION = "gradients"
pytestmark = pytest.mark.promise(0, 9)
NORM_FIRST = pytest.mark.parametrize("norm_first", [False, True], ids=["post-norm", "pre-norm"])
Compute = Callable[..., np.ndarray]
"""Computes a layer by the oracle: from its ``Layers``, the exact layer, and the exact arguments and options by name."""


def assert_gradients(judge: Judge, made: Any, shapes: Mapping[str, tuple[int, ...]], compute: Compute, **options: Any) -> None:
    """Hold the gradients of a layer, on the backend, to the oracle's: of all weights, of the inputs, and of the options.

    shapes: of the arguments ``x`` and ``memory``, and of floating options, by name. ``options``: those without gradients.
    """
    exact, there = perturbed(judge, made)
    given = {name: judge.normal(shape) for name, shape in shapes.items()}
    arrays = {name: judge.array(x) for name, x in given.items()}
    arguments = [name for name in given if name in ("x", "memory")]
    floating = {name: x for name, x in arrays.items() if name not in arguments}
    out, pullback = mha.vjp(there, *(arrays[name] for name in arguments), **floating, **options)
    d_out = judge.rounded(judge.rng.normal(size=tuple(out.shape)))
    pulled = pullback(judge.array(d_out))
    of_layer, *of_arguments = pulled
    assert type(of_layer) is type(there), f"the gradient of {type(there).__name__} is {type(of_layer).__name__}"
    gradients = {"out": out, **dict(zip(arguments, of_arguments, strict=True)), **pulled.options, **of_layer.arrays()}

    def expected_of(layers: Layers) -> Named:
        y = compute(layers, exact, **given)
        return {"out": y, **layers.gradients(y, d_out, of=given | exact.arrays())}

    expected = bounded(expected_of, judge.dtype, rounds_weights=judge.rounds_weights, rng=judge.rng)
    like = {"out": out, **arrays, **there.arrays()}
    tables = {name for name in like if name.startswith("rotary.")}  # they have no gradients
    assert gradients.keys() == expected.keys() == like.keys() - tables
    for name, (x, bound) in expected.items():
        judge.assert_like(gradients[name], like[name])
        assert_within(f"layers_vjp d_{name}", judge.numpy(gradients[name]), x, bound)


def chosen(judge: Judge, activation: str) -> str:
    """Return an activation; in half precision no relu, whose slope may jump where the sign of a sum is not certain."""
    return "gelu" if activation == "relu" and judge.dtype in ("float16", "bfloat16") else activation


def replaced(layer: Any, **fields: Any) -> Any:
    return type(layer)(**{**vars(layer), **fields})


@pytest.mark.parametrize("kv_heads", [4, 2, 1])
@pytest.mark.parametrize("options", ["none", "sink and bias", "context", "both contexts"])
def test_multi_head_attention(judge: Judge, kv_heads: int, options: str) -> None:
    """With grouped queries, masks, a bias that is shared by the batch, a sink, and contexts."""
    if judge.quick and kv_heads != 2:
        pytest.skip("quick runs judge one number of key heads")
    width = 16 if options in ("none", "sink and bias") else 12
    made = mha.MultiHeadAttention.init(d_model=16, num_heads=4, num_kv_heads=kv_heads, d_context=width, seed=1)
    if options == "both contexts":
        made = replaced(made, w_v=made.w_v[:7])
    more: dict[str, dict[str, tuple[int, ...]]] = {
        "none": {},
        "sink and bias": {"sink": (4,), "bias": (4, 5, 5)},
        "context": {"context": (2, 7, 12)},
        "both contexts": {"context": (2, 7, 12), "value_context": (2, 7, 7)},
    }
    allowed = judge.rng.random((5, 7 if "context" in options else 5)) < 0.7

    def compute(layers: Layers, net: Any, x: np.ndarray, **given: Any) -> np.ndarray:
        return layers.multi_head(x, net, allowed=allowed, **given)

    assert_gradients(judge, made, {"x": (2, 5, 16)} | more[options], compute, mask=judge.array(allowed))


@pytest.mark.parametrize("interleaved", [False, True])
def test_rotary_attention(judge: Judge, interleaved: bool) -> None:
    """The tables of the rotary embedding have no gradients."""
    made = mha.MultiHeadAttention.init(d_model=16, num_heads=4, num_kv_heads=2, seed=2)
    made = replaced(made, rotary=mha.Rotary.init(max_length=12, dim=4, interleaved=interleaved))
    seen = np.tri(5, k=3, dtype=bool)

    def compute(layers: Layers, net: Any, x: np.ndarray) -> np.ndarray:
        return layers.multi_head(x, net, offset=3, allowed=seen)

    assert_gradients(judge, made, {"x": (2, 5, 16)}, compute, mask=mha.causal(), query_offset=3)


def causal_layer(layers: Layers, layer: Any, x: np.ndarray, **options: Any) -> np.ndarray:
    return layers.encoder_layer(x, layer, allowed=np.tri(x.shape[-2], dtype=bool), **options)


@NORM_FIRST
def test_norms_of_heads_and_after_sublayers(judge: Judge, norm_first: bool) -> None:
    made = mha.EncoderLayer.init(**SMALL, activation="gelu", norm_first=norm_first, seed=8)
    of_heads, of_all = mha.RMSNorm.init(d_model=4), mha.LayerNorm.init(d_model=16)
    attention = replaced(made.attention, norm_q=of_heads, norm_k=of_heads)
    made = replaced(made, attention=attention, post_norm_1=of_all, post_norm_2=of_all)
    assert_gradients(judge, made, {"x": (2, 6, 16)}, causal_layer, mask=mha.causal())


@pytest.mark.parametrize("gate", [False, True])
@pytest.mark.parametrize("activation", ["relu", "gelu", "gelu_tanh", "silu"])
def test_feed_forward(judge: Judge, activation: str, gate: bool) -> None:
    if judge.quick and gate != (activation == "silu"):
        pytest.skip("quick runs judge a gate with silu only")
    made = mha.FeedForward.init(d_model=16, d_ff=24, activation=chosen(judge, activation), seed=3)
    made = replaced(made, w_g=made.w_1 * 0.7, b_g=made.b_1) if gate else made
    assert_gradients(judge, made, {"x": (2, 5, 16)}, lambda layers, net, x: layers.feed_forward(x, net))


@NORM_FIRST
@pytest.mark.parametrize("norm", ["LayerNorm", "RMSNorm"])
@pytest.mark.parametrize("dropout", [False, True])
def test_encoder_layer(judge: Judge, norm_first: bool, norm: str, dropout: bool) -> None:
    if judge.quick and dropout != norm_first:
        pytest.skip("quick runs judge dropout with pre-norm only")
    activation = chosen(judge, "relu")
    made = mha.EncoderLayer.init(**SMALL, activation=activation, norm_first=norm_first, seed=4)
    if norm == "RMSNorm":
        made = replaced(made, **{name: mha.RMSNorm(getattr(made, name).weight, 1e-5) for name in ("norm_1", "norm_2")})
    keeps = {name: judge.rng.random((2, 6, 16)) < 0.75 for name in ("attention", "feed_forward") if dropout}
    chosen_by = mha.Dropout(0.25, {name: judge.array(x) for name, x in keeps.items()}) if dropout else None
    compute = partial(causal_layer, kept={name: x / 0.75 for name, x in keeps.items()})
    assert_gradients(judge, made, {"x": (2, 6, 16)}, compute, mask=mha.causal(), dropout=chosen_by)


@NORM_FIRST
def test_encoder(judge: Judge, norm_first: bool) -> None:
    made = mha.Encoder.init(**SMALL, num_layers=2, activation="gelu", norm_first=norm_first, seed=5)
    shapes = {"x": (6, 16)}
    assert_gradients(judge, made, shapes, lambda layers, net, x: layers.stack(x, net, layers.encoder_layer))


@NORM_FIRST
@pytest.mark.parametrize("layers", [1, 2])
def test_decoder(judge: Judge, norm_first: bool, layers: int) -> None:
    """One layer, and a stack, whose layers read one memory: its gradients are summed."""
    if judge.quick and norm_first != (layers == 2):
        pytest.skip("quick runs judge one layer with post-norm, and two with pre-norm")
    settings: dict[str, Any] = {**SMALL, "activation": "gelu", "norm_first": norm_first, "seed": 6}
    made = mha.DecoderLayer.init(**settings) if layers == 1 else mha.Decoder.init(**settings, num_layers=layers)

    def compute(oracle: Layers, net: Any, x: np.ndarray, memory: np.ndarray) -> np.ndarray:
        one = partial(oracle.decoder_layer, memory=memory)
        return one(x, net) if layers == 1 else oracle.stack(x, net, one)

    assert_gradients(judge, made, {"x": (5, 16), "memory": (7, 16)}, compute)


def test_kernels_of_whole_layers(judge: Judge, layer_vjp_by: ComputedBy) -> None:
    """By each kernel that computes a layer together with its gradients."""
    for case in WHOLE[layer_vjp_by.op]:
        case(judge)


WHOLE: dict[str, list[Callable[..., None]]] = {
    "feed_forward_vjp": [
        partial(test_feed_forward, activation=name, gate=name == "silu") for name in ("relu", "gelu", "gelu_tanh", "silu")
    ],
    "multi_head_attention_vjp": [
        partial(test_multi_head_attention, kv_heads=2, options=name)
        for name in ("none", "sink and bias", "context", "both contexts")
    ],
    "encoder_layer_vjp": [
        *(
            partial(test_encoder_layer, norm_first=first, norm=norm, dropout=first)
            for first in (False, True)
            for norm in ("LayerNorm", "RMSNorm")
        ),
        *(partial(test_encoder, norm_first=first) for first in (False, True)),
        partial(test_norms_of_heads_and_after_sublayers, norm_first=True),
    ],
}
"""Cases of each operation that is made of smaller ones together with its gradients."""


def test_frozen_weights_have_no_gradients(wide: Judge) -> None:
    """``wrt`` chooses weights by their dotted names; the others' gradients are the same numbers."""
    _, there = perturbed(wide, mha.Encoder.init(**SMALL, num_layers=2, seed=7))
    x, d_out = (wide.array(wide.rng.normal(size=(6, 16))) for _ in range(2))
    every = mha.vjp(there, x)[1](d_out)
    some = mha.vjp(there, x, wrt=lambda name: name.startswith("layers.1.") and name.endswith(("w_q", "bias")))[1](d_out)
    wanted = {name for name in there.arrays() if name.startswith("layers.1.") and name.endswith(("w_q", "bias"))}
    assert some[0].arrays().keys() == wanted
    for name in wanted:
        x, y = (wide.numpy(found[0].arrays()[name]) for found in (every, some))
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
        found = mha.vjp(mha.scaled_dot_product_attention, many, one, one)[1](many)[2]
    elif sum_over == "pairs of a bias":
        _, pullback = mha.vjp(mha.attention_state, many, one, one, bias=judge.array(np.zeros((1, 1))))
        wide = judge.array(np.ones(4096), "float64" if judge.dtype == "float64" else "float32")
        found = pullback(mha.AttentionState(judge.xp.zeros_like(many), wide)).options["bias"]
    elif sum_over == "ids":
        ids = judge.array(np.zeros(4096, dtype=np.int64))
        found = mha.vjp(mha.embedding, ids, one)[1](many)[1]
    elif sum_over == "rows of a norm":
        weight = judge.array(np.ones(1))
        found = mha.vjp(mha.layer_norm, many, weight, weight)[1](many)[2]
    else:
        gradients = mha.vjp(mha.linear, many, one, judge.array(np.zeros(1)))[1](many)
        found = gradients[1 if sum_over == "rows of w" else 2]
    assert (judge.numpy(found) == 4096).all(), f"the sum of 4096 ones is {judge.numpy(found).ravel()[0]:g}"
