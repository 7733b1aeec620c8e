"""Gradients of layers, and of functions of operations, by ``mha.vjp``, against the chain of the gradients of their steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import pytest

import mha_core as mha

from .backend import BackendUnderTest
from .cases.layers import SMALL, perturbed
from .oracle import piece_gradients
from .oracle.attention_gradients import merge_gradients, summed_to
from .oracle.layer_gradients import LayerGradients, Named, Pull, bounded_gradients
from .oracle.tolerance import assert_within
from .probes.computed_by import ComputedBy

SECTION = "gradients"
pytestmark = pytest.mark.promise(0, 9)
NORM_FIRST = pytest.mark.parametrize("norm_first", [False, True], ids=["post-norm", "pre-norm"])
Given = Mapping[str, np.ndarray]
"""The floating arguments and options of a layer by name, already rounded."""


def assert_gradients(
    backend: BackendUnderTest,
    there: Any,
    given: Given,
    compute: Callable[[LayerGradients], tuple[np.ndarray, Pull]],
    dtype: str,
    rng: np.random.Generator,
    *,
    positional: int = 1,
    fixed: frozenset[str] = frozenset(),
    **options: Any,
) -> None:
    """Hold the gradients of a layer, on the backend, to the oracle's: of all weights, of the inputs, and of the options.

    The first ``positional`` arrays of ``given`` are arguments, the others options. ``fixed``: names of tables, which have none.
    """
    arrays = {name: backend.array(x, dtype) for name, x in given.items()}
    arguments = list(arrays.values())[:positional]
    optional = dict(list(arrays.items())[positional:])
    out, pullback = mha.vjp(there, *arguments, **optional, **options)
    d_out = backend.rounded(rng.normal(size=tuple(out.shape)), dtype)
    of_layer, *of_arguments = pullback(backend.array(d_out, dtype))
    assert type(of_layer) is type(there), f"the gradient of {type(there).__name__} is {type(of_layer).__name__}"
    found = dict(zip(given, of_arguments, strict=False)) | dict(pullback(backend.array(d_out, dtype)).options)
    found |= {**of_layer.arrays(), "out": out}
    expected = bounded_gradients(
        lambda layers: _pulled(compute(layers), d_out, given), dtype, rounds_weights=backend.rounds_weights, rng=rng
    )
    assert found.keys() == expected.keys(), f"gradients of {sorted(found.keys() ^ expected.keys())} are missing or too many"
    weights = there.arrays()
    assert found.keys() - given.keys() - {"out"} == weights.keys() - fixed
    for name, (exact, bound) in expected.items():
        backend.assert_like(found[name], out if name == "out" else arrays[name] if name in arrays else weights[name])
        assert_within(f"layers_vjp d_{name}", backend.numpy(found[name]), exact, bound)


def _pulled(computed: tuple[np.ndarray, Pull], d_out: np.ndarray, given: Given) -> Named:
    """Return the result and the gradients, with that of a context under the name of the argument."""
    found = computed[1](d_out)
    renamed = {"memory" if name == "context" and "memory" in given else name: x for name, x in found.items()}
    return {**renamed, "out": computed[0]}


def chosen(backend: BackendUnderTest, dtype: str, activation: str) -> str:
    """Return an activation; in half precision no relu, whose slope may jump where the sign of a sum is not certain."""
    return "gelu" if activation == "relu" and dtype in ("float16", "bfloat16") else activation


@pytest.mark.parametrize("kv_heads", [4, 2, 1])
@pytest.mark.parametrize("options", ["none", "sink and bias", "context", "both contexts"])
def test_multi_head_attention(
    backend: BackendUnderTest, dtype: str, rng: np.random.Generator, kv_heads: int, options: str
) -> None:
    """With grouped queries, masks, a bias that is shared by the batch, a sink, and contexts."""
    if backend.quick and kv_heads != 2:
        pytest.skip("quick runs judge one number of key heads")
    width = 16 if options in ("none", "sink and bias") else 12
    made = mha.MultiHeadAttention.init(d_model=16, num_heads=4, num_kv_heads=kv_heads, d_context=width, seed=1)
    if options == "both contexts":
        made = mha.MultiHeadAttention(**{**vars(made), "w_v": made.w_v[:7]})
    exact, there = perturbed(backend, made, dtype, rng)
    shapes: dict[str, tuple[int, ...]] = {"x": (2, 5, 16)}
    shapes |= {"context": (2, 7, 12)} if "context" in options else {}
    shapes |= {"value_context": (2, 7, 7)} if options == "both contexts" else {}
    shapes |= {"sink": (4,), "bias": (4, 5, 5)} if options == "sink and bias" else {}
    given = {name: backend.rounded(rng.normal(size=shape), dtype) for name, shape in shapes.items()}
    allowed = rng.random((5, 7 if "context" in shapes else 5)) < 0.7
    others: dict[str, Any] = {name: x for name, x in given.items() if name != "x"}
    if "bias" in given:
        others["of_bias"] = lambda d: summed_to(d, (4, 5, 5))

    def compute(layers: LayerGradients) -> tuple[np.ndarray, Pull]:
        return layers.multi_head_vjp(given["x"], exact, allowed=allowed, **others)

    assert_gradients(backend, there, given, compute, dtype, rng, mask=backend.array(allowed))


@pytest.mark.parametrize("interleaved", [False, True])
def test_rotary_attention(backend: BackendUnderTest, dtype: str, rng: np.random.Generator, interleaved: bool) -> None:
    """The tables of the rotary embedding have no gradients."""
    made = mha.MultiHeadAttention.init(d_model=16, num_heads=4, num_kv_heads=2, seed=2)
    tables = mha.Rotary.init(max_length=12, dim=4, interleaved=interleaved)
    exact, there = perturbed(backend, made, dtype, rng)
    cos, sin = (backend.rounded(np.asarray(x, dtype=np.float64), dtype) for x in (tables.cos, tables.sin))
    of_exact = mha.Rotary(cos, sin, interleaved=interleaved)
    exact, there = (
        mha.MultiHeadAttention(**{**vars(layer), "rotary": rotary})
        for layer, rotary in ((exact, of_exact), (there, of_exact.map(lambda x: backend.array(x, dtype))))
    )
    given = {"x": backend.rounded(rng.normal(size=(2, 5, 16)), dtype)}

    def compute(layers: LayerGradients) -> tuple[np.ndarray, Pull]:
        return layers.multi_head_vjp(given["x"], exact, offset=3, allowed=np.tri(5, k=3, dtype=bool))

    fixed = frozenset({"rotary.cos", "rotary.sin"})
    assert_gradients(backend, there, given, compute, dtype, rng, fixed=fixed, mask=mha.causal(), query_offset=3)


@NORM_FIRST
def test_norms_of_heads_and_after_sublayers(
    backend: BackendUnderTest, dtype: str, rng: np.random.Generator, norm_first: bool
) -> None:
    made = mha.EncoderLayer.init(**SMALL, activation="gelu", norm_first=norm_first, seed=8)
    of_heads, of_all = mha.RMSNorm.init(d_model=4), mha.LayerNorm.init(d_model=16)
    attention = mha.MultiHeadAttention(**{**vars(made.attention), "norm_q": of_heads, "norm_k": of_heads})
    norms = {"attention": attention, "post_norm_1": of_all, "post_norm_2": of_all}
    exact, there = perturbed(backend, mha.EncoderLayer(**{**vars(made), **norms}), dtype, rng)
    given = {"x": backend.rounded(rng.normal(size=(2, 6, 16)), dtype)}

    def compute(layers: LayerGradients) -> tuple[np.ndarray, Pull]:
        return layers.encoder_layer_vjp(given["x"], exact, allowed=np.tri(6, dtype=bool))

    assert_gradients(backend, there, given, compute, dtype, rng, mask=mha.causal())


@pytest.mark.parametrize("gate", [False, True])
@pytest.mark.parametrize("activation", ["relu", "gelu", "gelu_tanh", "silu"])
def test_feed_forward(backend: BackendUnderTest, dtype: str, rng: np.random.Generator, activation: str, gate: bool) -> None:
    if backend.quick and gate != (activation == "silu"):
        pytest.skip("quick runs judge a gate with silu only")
    made = mha.FeedForward.init(d_model=16, d_ff=24, activation=chosen(backend, dtype, activation), seed=3)
    if gate:
        made = mha.FeedForward(**{**vars(made), "w_g": made.w_1 * 0.7, "b_g": made.b_1})
    exact, there = perturbed(backend, made, dtype, rng)
    given = {"x": backend.rounded(rng.normal(size=(2, 5, 16)), dtype)}
    assert_gradients(backend, there, given, lambda layers: layers.feed_forward_vjp(given["x"], exact), dtype, rng)


@NORM_FIRST
@pytest.mark.parametrize("norm", ["LayerNorm", "RMSNorm"])
@pytest.mark.parametrize("dropout", [False, True])
def test_encoder_layer(
    backend: BackendUnderTest, dtype: str, rng: np.random.Generator, norm_first: bool, norm: str, dropout: bool
) -> None:
    if backend.quick and dropout != norm_first:
        pytest.skip("quick runs judge dropout with pre-norm only")
    activation = chosen(backend, dtype, "relu")
    made = mha.EncoderLayer.init(**SMALL, activation=activation, norm_first=norm_first, seed=4)
    if norm == "RMSNorm":
        norms = {name: mha.RMSNorm(getattr(made, name).weight, 1e-5) for name in ("norm_1", "norm_2")}
        made = mha.EncoderLayer(**{**vars(made), **norms})
    exact, there = perturbed(backend, made, dtype, rng)
    given = {"x": backend.rounded(rng.normal(size=(2, 6, 16)), dtype)}
    keeps = {name: rng.random((2, 6, 16)) < 0.75 for name in ("attention", "feed_forward") if dropout}
    chosen_by = mha.Dropout(0.25, {name: backend.array(x) for name, x in keeps.items()}) if dropout else None
    kept = {name: x / 0.75 for name, x in keeps.items()}

    def compute(layers: LayerGradients) -> tuple[np.ndarray, Pull]:
        return layers.encoder_layer_vjp(given["x"], exact, kept=kept, allowed=np.tri(6, dtype=bool))

    assert_gradients(backend, there, given, compute, dtype, rng, mask=mha.causal(), dropout=chosen_by)


@NORM_FIRST
def test_encoder(backend: BackendUnderTest, dtype: str, rng: np.random.Generator, norm_first: bool) -> None:
    made = mha.Encoder.init(**SMALL, num_layers=2, activation="gelu", norm_first=norm_first, seed=5)
    exact, there = perturbed(backend, made, dtype, rng)
    given = {"x": backend.rounded(rng.normal(size=(6, 16)), dtype)}

    def compute(layers: LayerGradients) -> tuple[np.ndarray, Pull]:
        return layers.stack_vjp(given["x"], exact, layers.encoder_layer_vjp)

    assert_gradients(backend, there, given, compute, dtype, rng)


@NORM_FIRST
@pytest.mark.parametrize("layers", [1, 2])
def test_decoder(backend: BackendUnderTest, dtype: str, rng: np.random.Generator, norm_first: bool, layers: int) -> None:
    """One layer, and a stack, whose layers read one memory: its gradients are summed."""
    if backend.quick and norm_first != (layers == 2):
        pytest.skip("quick runs judge one layer with post-norm, and two with pre-norm")
    settings: dict[str, Any] = {**SMALL, "activation": "gelu", "norm_first": norm_first, "seed": 6}
    made = mha.DecoderLayer.init(**settings) if layers == 1 else mha.Decoder.init(**settings, num_layers=layers)
    exact, there = perturbed(backend, made, dtype, rng)
    given = {name: backend.rounded(rng.normal(size=(n, 16)), dtype) for name, n in (("x", 5), ("memory", 7))}

    def compute(oracle: LayerGradients) -> tuple[np.ndarray, Pull]:
        one = partial(oracle.decoder_layer_vjp, memory=given["memory"])
        return one(given["x"], exact) if layers == 1 else oracle.stack_vjp(given["x"], exact, one)

    assert_gradients(backend, there, given, compute, dtype, rng, positional=2)


def test_kernels_of_whole_layers(
    backend: BackendUnderTest, layer_vjp_by: ComputedBy, dtype: str, rng: np.random.Generator
) -> None:
    """By each kernel that computes a layer together with its gradients."""
    for case in WHOLE[layer_vjp_by.op]:
        case(backend, dtype, rng)


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


def test_frozen_weights_have_no_gradients(backend: BackendUnderTest, wide_dtype: str, rng: np.random.Generator) -> None:
    """``wrt`` chooses weights by their dotted names; the others' gradients are the same numbers."""
    _, there = perturbed(backend, mha.Encoder.init(**SMALL, num_layers=2, seed=7), wide_dtype, rng)
    x, d_out = (backend.array(rng.normal(size=(6, 16)), wide_dtype) for _ in range(2))
    every = mha.vjp(there, x)[1](d_out)
    some = mha.vjp(there, x, wrt=lambda name: name.startswith("layers.1.") and name.endswith(("w_q", "bias")))[1](d_out)
    wanted = {name for name in there.arrays() if name.startswith("layers.1.") and name.endswith(("w_q", "bias"))}
    assert some[0].arrays().keys() == wanted
    for name in wanted:
        x, y = (backend.numpy(found[0].arrays()[name]) for found in (every, some))
        np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6)


# pieces and functions


def test_dropout(backend: BackendUnderTest, dtype: str, rng: np.random.Generator) -> None:
    x, d = (backend.rounded(rng.normal(size=(3, 40)), dtype) for _ in range(2))
    keep = rng.random((3, 40)) < 0.5
    out, pullback = mha.vjp(mha.dropout, backend.array(x, dtype), backend.array(keep), rate=0.25)
    d_x, nothing = pullback(backend.array(d, dtype))
    assert nothing is None, "keep has no gradient"
    backend.assert_like(d_x, out)
    found = piece_gradients.bounded(piece_gradients.dropout(d, x, keep, rate=0.25), dtype)
    assert_within("dropout_vjp d_x", backend.numpy(d_x), *found["x"])


def test_merged_states(backend: BackendUnderTest, dtype: str, rng: np.random.Generator) -> None:
    """Three states are merged, one of which is over no keys in some rows."""
    wide = "float64" if dtype == "float64" else "float32"
    outs = [backend.rounded(rng.normal(size=(2, 5, 4)), dtype) for _ in range(3)]
    lses = [backend.rounded(3 * rng.normal(size=(2, 5)), wide) for _ in range(3)]
    outs[1][:, 2], lses[1][:, 2] = 0, -np.inf
    d_out, d_lse = backend.rounded(rng.normal(size=(2, 5, 4)), dtype), backend.rounded(rng.normal(size=(2, 5)), wide)
    states = [
        mha.AttentionState(backend.array(out, dtype), backend.array(lse, wide)) for out, lse in zip(outs, lses, strict=True)
    ]
    _, pullback = mha.vjp(mha.merge_states, *states)
    gradients = pullback(mha.AttentionState(backend.array(d_out, dtype), backend.array(d_lse, wide)))
    expected = merge_gradients(outs, lses, d_out, d_lse, dtype=dtype)
    for state, gradient, (of_out, of_lse) in zip(states, gradients, expected, strict=True):
        backend.assert_like(gradient.out, state.out)
        backend.assert_like(gradient.lse, state.lse)
        assert_within("merge_states_vjp d_out", backend.numpy(gradient.out), *of_out)
        assert_within("merge_states_vjp d_lse", backend.numpy(gradient.lse), *of_lse)


def test_a_function_of_operations(backend: BackendUnderTest, wide_dtype: str, rng: np.random.Generator) -> None:
    """An argument that is used twice has the sum of both gradients; one that is used nowhere has zeros."""
    x, w, unused, d = (backend.rounded(rng.normal(size=shape), wide_dtype) for shape in ((5, 8), (8, 8), (3,), (5, 8)))

    def function(x: Any, w: Any, unused: Any) -> Any:
        y = mha.linear(x, w)
        return mha.linear(mha.scaled_dot_product_attention(y, x, mha.gelu(y)), w)

    arrays = [backend.array(each, wide_dtype) for each in (x, w, unused)]
    d_x, d_w, nothing = mha.vjp(function, *arrays)[1](backend.array(d, wide_dtype))

    def compute(layers: LayerGradients) -> Named:
        y = layers.linear(x, w, None)
        value = layers.activation("gelu", y)
        z = layers.attention(y[None], x[None], value[None])[0]
        d_z, last = layers.linear_pull(z, w, None, d, "")
        found = layers.attention_pull(d_z[None], y[None], x[None], value[None])
        d_y = layers.sum(found["query"][0], layers.activation_pull("gelu", y, found["value"][0]))
        d_x, first = layers.linear_pull(x, w, None, d_y, "")
        return {"x": layers.sum(d_x, found["key"][0]), "w": layers.sum(first["w_"], last["w_"])}

    expected = bounded_gradients(compute, wide_dtype, rounds_weights=backend.rounds_weights, rng=rng)
    assert_within("layers_vjp d_x", backend.numpy(d_x), *expected["x"])
    assert_within("layers_vjp d_w", backend.numpy(d_w), *expected["w"])
    assert tuple(nothing.shape) == (3,) and not backend.numpy(nothing).any()


# sums that only a wider dtype gets right


@pytest.mark.parametrize("sum_over", ["queries", "rows of w", "rows of b", "rows of a norm", "ids", "pairs of a bias"])
def test_many_gradients_are_summed_in_float32(backend: BackendUnderTest, dtype: str, sum_over: str) -> None:
    """4096 equal terms of 1: a sum of ones stops at 2048 in float16, at 256 in bfloat16."""
    many, one = backend.array(np.ones((4096, 1)), dtype), backend.array(np.ones((1, 1)), dtype)
    if sum_over == "queries":
        found = mha.vjp(mha.scaled_dot_product_attention, many, one, one)[1](many)[2]
    elif sum_over == "pairs of a bias":
        _, pullback = mha.vjp(mha.attention_state, many, one, one, bias=backend.array(np.zeros((1, 1)), dtype))
        wide = backend.array(np.ones(4096), "float64" if dtype == "float64" else "float32")
        found = pullback(mha.AttentionState(backend.xp.zeros_like(many), wide)).options["bias"]
    elif sum_over == "ids":
        ids = backend.array(np.zeros(4096, dtype=np.int64))
        found = mha.vjp(mha.embedding, ids, one)[1](many)[1]
    elif sum_over == "rows of a norm":
        weight = backend.array(np.ones(1), dtype)
        found = mha.vjp(mha.layer_norm, many, weight, weight)[1](many)[2]
    else:
        gradients = mha.vjp(mha.linear, many, one, backend.array(np.zeros(1), dtype))[1](many)
        found = gradients[1 if sum_over == "rows of w" else 2]
    assert (backend.numpy(found) == 4096).all(), f"the sum of 4096 ones is {backend.numpy(found).ravel()[0]:g}"
