"""Kernel selection: a kernel receives only calls whose features it declares; the algebra computes the others."""

from dataclasses import fields, replace
from functools import partial

import array_api_strict as strict
import numpy as np
import pytest
from sample_kernels import (
    ANSWER,
    FEATURES,
    WIDTH,
    A,
    Plugin,
    W,
    a_backend,
    a_call,
    a_kernel,
    given,
    received,
    registered,
)

import mha_core as mha
from mha_core.algebra.biases import as_bias
from mha_core.algebra.structure import Structure
from mha_core.dispatch.contract import (
    ATTENTION_FEATURES,
    BIAS_FEATURES,
    FUNCTION_FEATURES,
    LAYER_FEATURES,
    MASK_FEATURES,
    OPTION_FEATURES,
)
from mha_core.ops.attend import prepare
from mha_core.plugin import AttentionProblem, Bias, Mask

each_feature = pytest.mark.parametrize("feature", FEATURES)


@pytest.fixture
def arguments(rng):
    return partial(a_call, rng)


def assert_equal(state, expected):
    np.testing.assert_array_equal(state.out, expected.out)
    np.testing.assert_array_equal(state.lse, expected.lse)


# features


def test_every_feature_of_attention_is_tried_here():
    assert frozenset(FEATURES) | {"lse"} == ATTENTION_FEATURES | FUNCTION_FEATURES


def test_every_kind_of_bias_has_a_feature(arguments):
    _, problem = prepare(**arguments())
    biases = [as_bias(arguments(feature)["bias"]) for feature in sorted(BIAS_FEATURES)]
    assert frozenset().union(*(replace(problem, bias=bias).features for bias in biases)) == BIAS_FEATURES


def test_every_feature_of_a_layer_is_in_the_vocabulary():
    layers = [
        mha.EncoderLayer.init(d_model=8, num_heads=2, d_ff=16, activation=activation, norm_first=norm_first, seed=0)
        for activation in ("relu", "gelu", "gelu_tanh", "silu")
        for norm_first in (False, True)
    ]
    rotary = mha.Rotary.init(max_length=4, dim=4, interleaved=True)
    layers.append(
        replace(
            layers[0],
            attention=replace(layers[0].attention, rotary=rotary, num_kv_heads=1),
            norm_1=mha.RMSNorm.init(d_model=8),
            norm_2=mha.RMSNorm.init(d_model=8),
            feed_forward=mha.FeedForward.init(d_model=8, d_ff=16, gated=True, seed=0),
        )
    )
    for kind in (mha.LayerNorm, mha.RMSNorm):
        attention = replace(layers[0].attention, norm_q=kind.init(d_model=4), norm_k=kind.init(d_model=4))
        norm = kind.init(d_model=8)
        layers.append(replace(layers[0], attention=attention, post_norm_1=norm, post_norm_2=norm))
    layers.append(replace(layers[0], norm_1=mha.Identity(), norm_2=mha.Identity()))
    named = frozenset().union(*(layer.features for layer in layers))
    assert named | OPTION_FEATURES | {"dropout"} == LAYER_FEATURES


def test_an_unknown_feature_is_reported_with_a_suggestion(installed):
    installed(a_kernel(handles=frozenset({"casual", "lse"})), a_kernel("gelu", handles=frozenset({"qqq"})))
    rows = {row.reason: row.state for row in mha.backends() if "no such feature" in row.reason}
    assert rows == {
        "kernel 'sample' handles 'casual', but attention has no such feature; did you mean 'causal'?": "idle",
        "kernel 'sample' handles 'qqq', but gelu has no such feature": "idle",
    }


def test_features_of_a_library_or_of_a_custom_layer_are_not_reported(installed):
    library = a_backend(features=lambda arrays: frozenset({"qqq"}))
    installed(
        a_kernel(backend="sample", handles=frozenset({"qqq", "gradient"})),
        a_kernel("encoder_layer", handles=frozenset({"norm_1=elsewhere.Norm"})),
        backends=[library],
    )
    assert not [row for row in mha.backends() if "no such feature" in row.reason]


def test_our_own_plugins_declare_nothing_unknown():
    assert not [row for row in mha.backends() if row.distribution == "mha-core" and row.reason]


def test_a_kernel_without_lse_is_asked_only_by_calls_that_need_none(installed, arguments):
    call = arguments()
    expected = mha.attention_state(**call)
    installed(a_kernel(handles=frozenset()))
    assert_equal(mha.attention_state(**call), expected)
    assert (mha.scaled_dot_product_attention(**call) == ANSWER).all()
    assert given().features == frozenset()
    installed(a_kernel(name="with lse", handles=frozenset({"lse"})))
    out, lse = mha.attention_state(**call)
    assert (out == ANSWER).all()
    assert (lse == 0).all()


@each_feature
def test_a_kernel_that_declares_the_feature_receives_the_call(installed, arguments, feature):
    with_it = {"mask_function": {"mask"}}.get(feature, set())
    installed(a_kernel(handles=frozenset({feature, *with_it})))
    assert (mha.scaled_dot_product_attention(**arguments(feature)) == ANSWER).all()
    assert given().features == {feature, *with_it}


@each_feature
def test_a_kernel_that_lacks_the_feature_is_never_asked(installed, arguments, feature):
    call = arguments(feature)
    expected = mha.attention_state(**call)
    asked = []
    installed(a_kernel(handles=frozenset(FEATURES) - {feature}, supports=asked.append))
    assert_equal(mha.attention_state(**call), expected)
    assert not received
    assert not asked


def test_every_part_of_a_structure_has_a_feature():
    bare = Structure(range(3))
    optional = [field.name for field in fields(Structure) if field.default is None]
    structures = [replace(bare, **{name: Mask() if name == "rest" else object()}) for name in optional]
    structures += [replace(bare, band=band) for band in [(None, 0), (0, None), (0, 0)]]
    assert optional
    assert all(structure.features for structure in structures)
    assert frozenset().union(*(structure.features for structure in structures)) == MASK_FEATURES


def test_every_option_of_a_problem_is_a_feature(installed, arguments):
    installed(a_kernel())
    mha.scaled_dot_product_attention(**arguments())
    by_structure = {"mask"}
    optional = {field.name for field in fields(AttentionProblem) if field.default is None} - by_structure
    assert optional
    assert all(replace(given(), **{name: Bias() if name == "bias" else object()}).features for name in optional)


# choice


@pytest.mark.parametrize("first", [0, 1], ids=["in order", "in reverse"])
def test_the_highest_priority_that_takes_the_call_wins(installed, arguments, first):
    kernels = [
        a_kernel(priority=50),
        a_kernel(name="other", load="sample_kernels:other_attention", handles=frozenset({"sink"})),
    ]
    installed(kernels[first])
    installed(kernels[1 - first])
    assert (mha.scaled_dot_product_attention(**arguments("sink")) == -ANSWER).all()
    assert (mha.scaled_dot_product_attention(**arguments("sink", "causal")) == ANSWER).all()


@pytest.mark.parametrize("supports", [lambda call: "it is Monday", "sample_kernels:supports"], ids=["function", "name"])
def test_a_reason_from_supports_sends_the_call_to_another_kernel(installed, arguments, supports):
    call = arguments("softcap")
    expected = mha.attention_state(**call)
    installed(a_kernel(supports=supports))
    assert ("sample", "it is Monday") in mha.explain("attention", **call).rejected
    assert_equal(mha.attention_state(**call), expected)
    installed(a_kernel(name="other", priority=50, load="sample_kernels:other_attention"))
    assert (mha.scaled_dot_product_attention(**call) == -ANSWER).all()


def test_supports_receives_shapes_dtype_device_and_options(installed, arguments):
    calls = []
    installed(*(a_kernel(op, supports=calls.append) for op in ("attention", "gelu", "linear")))
    mha.scaled_dot_product_attention(**arguments("causal", "value_dim"))
    mha.gelu(A, approximate="tanh")
    mha.linear(A, W)
    attention, gelu, linear = calls
    assert [linear.shape(name) for name in ("x", "w", "b")] == [(2, 3), (3, 3), None]
    assert (attention.op, attention.features) == ("attention", {"causal", "value_dim"})
    assert [attention.shape(name) for name in ("query", "value", "sink")] == [(2, 4, 6, 8), (2, 4, 6, 72), None]
    assert (gelu.op, gelu.dtype, gelu.device, gelu.option("approximate")) == ("gelu", np.dtype("float64"), "cpu", "tanh")


def test_supports_sees_the_name_of_a_dtype_whatever_the_library_calls_it(backend):
    seen = []
    looks = a_kernel("relu", backend=backend.name, supports=lambda call: seen.append(call.dtype_name) or "only looks")
    with registered(Plugin([looks])):
        for dtype in ("float32", "float64"):
            mha.relu(backend.xp.astype(backend.from_numpy(np.ones(2, dtype=np.float32)), getattr(backend.xp, dtype)))
    assert seen == ["float32", "float64"]


def test_supports_given_by_name_receives_the_same_call_as_a_function(installed):
    calls = []
    installed(
        a_kernel("gelu", supports=calls.append),
        a_kernel("gelu", name="named", supports="sample_kernels:supports", priority=200),
    )
    mha.gelu(A)
    ((op, (call,), _), *_) = received
    assert (op, call) == ("supports", calls[0])


def test_supports_given_by_name_is_looked_up_when_the_plugin_is_registered(monkeypatch):
    plugin = Plugin([a_kernel("gelu", supports="sample_kernels:supports")])
    for reason in ("it is Tuesday", "it is Wednesday"):
        monkeypatch.setattr("sample_kernels.supports", lambda call, reason=reason: reason)
        with registered(plugin):
            assert mha.explain("gelu", A).rejected[0] == ("sample", reason)


def test_supports_is_called_once_per_signature(installed, arguments):
    calls = []
    installed(a_kernel(supports=calls.append))
    for _ in range(3):
        mha.scaled_dot_product_attention(**arguments("causal"))
    assert len(calls) == 1
    mha.scaled_dot_product_attention(**arguments("window"))
    mha.scaled_dot_product_attention(**{name: x[..., :5] for name, x in arguments().items()})
    mha.scaled_dot_product_attention(**{name: x.astype(np.float32) for name, x in arguments().items()})
    assert len(set(calls)) == len(calls) == 4


def test_a_plugin_can_add_a_kernel_to_another_plugins_backend(installed, arguments):
    call = arguments("sink")
    converted = {name: strict.asarray(x) for name, x in call.items()}
    expected = mha.scaled_dot_product_attention(**call)
    installed(a_kernel(backend="array_api_strict"), a_kernel("relu", backend="array_api_strict"))
    out = mha.scaled_dot_product_attention(**converted)
    assert isinstance(out, type(converted["query"]))
    assert bool(strict.all(out == ANSWER))
    assert given().xp is strict
    assert mha.relu(converted["sink"]) is converted["sink"]
    np.testing.assert_array_equal(mha.scaled_dot_product_attention(**call), expected)


def test_larger_operations_use_the_kernels_of_smaller_ones(installed):
    layer = mha.EncoderLayer.init(d_model=4, num_heads=2, d_ff=4, activation="silu", norm_first=True, seed=0)
    installed(*(a_kernel(op) for op in ("attention", "linear", "layer_norm", "silu")))
    x = np.ones((3, 4), dtype=np.float32)
    with mha.use_kernel("encoder_layer", "algebra"), mha.use_kernel("feed_forward", "algebra"):
        layer(x, mask=mha.causal())
    steps = "layer_norm linear linear linear attention linear layer_norm linear silu linear"
    assert " ".join(op for op, _, _ in received) == steps


def test_weights_use_the_lse_of_a_kernel_and_need_no_kernel_without_it(installed):
    x = np.zeros((1, 3, WIDTH))
    installed(a_kernel())  # its lse is 0, not log(3)
    lse = mha.attention_state(x, x, x).lse
    np.testing.assert_array_equal(mha.attention_weights(x, x, lse), np.ones((1, 3, 3)))
    np.testing.assert_allclose(mha.attention_weights(x, x), np.full((1, 3, 3), 1 / 3))
