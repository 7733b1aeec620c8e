"""Kernel selection fails closed: a kernel is given only what it declares, prepared, and the algebra does all else."""

import ast
import inspect
import re
import textwrap
from dataclasses import fields, replace

import array_api_strict as strict
import numpy as np
import pytest

import mha_core as mha
from conftest import ROOT
from mha_core.algebra import problem as problems
from mha_core.algebra.structure import Structure
from mha_core.dispatch.backend import load
from mha_core.dispatch.kernels import decide
from mha_core.plugin import AttentionProblem, Call, register, unregister
from sample_kernels import ANSWER, BATCH, FEATURES, HEADS, LENGTH, OPERATIONS, WIDTH, A, Plugin, W, a_kernel, received

each_feature = pytest.mark.parametrize("feature", FEATURES)


@pytest.fixture
def arguments(rng):
    """The arguments of a call of attention that uses these features and no others, besides ``changes``."""

    def normal(*shape):
        return rng.normal(size=shape)

    def make(*features, **changes):
        call = {name: normal(BATCH, HEADS, LENGTH, WIDTH) for name in ("query", "key", "value")}
        for feature in features:
            call |= FEATURES[feature](normal)
        return call | changes

    return make


def given():
    """The problem that the last kernel called received."""
    return received[-1][1][0]


def assert_equal(state, expected):
    np.testing.assert_array_equal(state.out, expected.out)
    np.testing.assert_array_equal(state.lse, expected.lse)


# features


def test_every_feature_that_core_can_name_is_tried_here():
    named = {*problems._BIAS_FEATURES.values(), "bias_term"}
    for owner in (Structure, AttentionProblem):
        features = vars(owner)["features"]
        source = ast.parse(textwrap.dedent(inspect.getsource(getattr(features, "func", None) or features.fget)))
        named |= {key.value for node in ast.walk(source) if isinstance(node, ast.Dict) for key in node.keys}
    assert named == frozenset(FEATURES)


def test_a_plain_call_has_no_feature_and_goes_to_the_humblest_kernel(installed, arguments):
    installed(a_kernel(handles=frozenset()))
    assert (mha.scaled_dot_product_attention(**arguments()) == ANSWER).all()
    assert given().features == frozenset()


def test_a_kernel_that_gives_no_lse_is_asked_only_where_none_is_wanted(installed, arguments):
    call = arguments()
    expected = mha.attention_state(**call)
    installed(a_kernel(handles=frozenset()))
    assert_equal(mha.attention_state(**call), expected)
    assert (mha.scaled_dot_product_attention(**call) == ANSWER).all()
    installed(a_kernel(name="with lse", handles=frozenset({"lse"})))
    out, lse = mha.attention_state(**call)
    assert (out == ANSWER).all()
    assert (lse == 0).all()


@each_feature
def test_a_kernel_that_declares_the_feature_receives_the_call(installed, arguments, feature):
    installed(a_kernel(handles=frozenset({feature})))
    assert (mha.scaled_dot_product_attention(**arguments(feature)) == ANSWER).all()
    assert given().features == {feature}


@each_feature
def test_a_kernel_that_lacks_the_feature_is_never_asked(installed, arguments, feature):
    call = arguments(feature)
    expected = mha.attention_state(**call)
    asked = []
    installed(a_kernel(handles=frozenset(FEATURES) - {feature}, supports=asked.append))
    assert_equal(mha.attention_state(**call), expected)
    assert not received
    assert not asked


def test_one_undeclared_feature_among_many_is_enough(installed, arguments):
    call = arguments("softcap", "sink", "alibi", "grouped_query", value=np.ones((1, 2, LENGTH, 3)))
    call["mask"] = mha.causal() & mha.key_lengths(np.asarray([3, LENGTH])) & (np.eye(LENGTH) == 0) & mha.chunks(4)
    expected = mha.attention_state(**call)
    plugin = installed(a_kernel())
    assert (mha.attention_state(**call).out == ANSWER).all()
    used = given().features
    assert used >= {"softcap", "sink", "alibi", "grouped_query", "value_dim", "broadcast", "causal", "key_lengths", "mask"}
    received.clear()
    for feature in used:
        plugin.kernels = (a_kernel(handles=used - {feature}),)
        unregister(plugin)
        register(plugin)
        assert_equal(mha.attention_state(**call), expected)
    assert not received


def test_every_part_of_a_structure_is_a_feature():
    bare = Structure(range(3))
    optional = [field.name for field in fields(Structure) if field.default is None]
    assert optional
    assert all(replace(bare, **{name: object()}).features for name in optional)
    assert all(replace(bare, band=band).features for band in [(None, 0), (0, None), (0, 0)])


def test_every_option_of_a_problem_is_a_feature(installed, arguments):
    installed(a_kernel())
    mha.scaled_dot_product_attention(**arguments())
    by_structure = {"mask"}
    optional = {field.name for field in fields(AttentionProblem) if field.default is None} - by_structure
    assert optional
    assert all(replace(given(), **{name: object()}).features for name in optional)


def test_the_reason_names_what_the_kernel_lacks(installed, arguments):
    installed(a_kernel())
    mha.scaled_dot_product_attention(**arguments())
    problem = given()
    first = a_kernel(name="first", handles=frozenset({"sink"}), priority=300)
    installed(first, a_kernel(name="second", supports=lambda call: "it is Monday", priority=200))
    shapes = (("query", problem.query.shape),)
    decision = decide("numpy", Call("attention", shapes, problem.query.dtype, "cpu", frozenset({"softcap", "causal", "sink"})))
    assert decision.kernel.name == "sample"
    reasons = {kernel.name: reason for kernel, reason in decision.rejected}
    assert reasons == {"first": "does not handle causal, softcap", "second": "it is Monday"}


# what a kernel receives


def received_by(installed, call):
    installed(a_kernel())
    mha.scaled_dot_product_attention(**call)
    return given()


def test_arrays_arrive_as_they_are_where_nothing_is_masked(installed, arguments):
    call = arguments(scale=0.25)
    problem = received_by(installed, call)
    assert isinstance(problem, AttentionProblem)
    assert all(getattr(problem, name) is call[name] for name in ("query", "key", "value"))
    assert problem.xp is load("numpy").xp
    assert (problem.scale, problem.mask, problem.bias, problem.softcap, problem.sink) == (0.25, None, None, None, None)
    assert problem.structure.keys == range(LENGTH)
    assert problem.rows_shape == (BATCH, HEADS, LENGTH)


def test_options_arrive_in_full(installed, arguments):
    call = arguments("softcap", "sink", "alibi", "grouped_query")
    problem = received_by(installed, call)
    assert (problem.softcap, problem.sink, problem.bias) == (call["softcap"], call["sink"], call["bias"])
    assert problem.num_groups == 2
    assert problem.scale == pytest.approx(WIDTH**-0.5)


def test_two_axes_become_one_head_and_the_answer_two_axes_again(installed):
    x = np.ones((3, WIDTH))
    problem = received_by(installed, {"query": x, "key": x, "value": x})
    assert problem.query.shape == problem.key.shape == problem.value.shape == (1, 3, WIDTH)
    assert mha.scaled_dot_product_attention(x, x, x).shape == (3, WIDTH)


def test_keys_beyond_a_length_are_dropped_and_nothing_is_left_to_handle(installed, arguments):
    call = arguments(mask=mha.key_lengths(4))
    problem = received_by(installed, call)
    assert (problem.structure.keys, problem.features) == (range(4), frozenset())
    np.testing.assert_array_equal(problem.key, call["key"][..., :4, :])
    np.testing.assert_array_equal(problem.value, call["value"][..., :4, :])


def test_a_window_keeps_the_keys_it_reaches_and_its_band_counts_from_them(installed, rng):
    query, key = rng.normal(size=(1, 2, WIDTH)), rng.normal(size=(1, 10, WIDTH))
    mask = mha.window(1, 1)
    problem = received_by(installed, {"query": query, "key": key, "value": key, "mask": mask, "query_offset": 5})
    assert problem.structure.keys == range(4, 8)  # queries at 5 and 6
    assert problem.structure.band == (0, 2)  # key 4 + j is within 1 of position 5 + i
    np.testing.assert_array_equal(problem.key, key[:, 4:8])


UNRESTRAINED = [mha.causal(), mha.window(99, 99), mha.packed([LENGTH, 0]), mha.prefix(99), ~~mha.chunks(99)]


@pytest.mark.parametrize("mask", UNRESTRAINED, ids=repr)
def test_a_mask_that_restrains_nothing_leaves_no_feature(installed, arguments, mask):
    problem = received_by(installed, arguments(mask=mask, query_offset=LENGTH - 1))
    assert (problem.structure.keys, problem.features) == (range(LENGTH), frozenset())


def test_a_conjunction_arrives_part_by_part(installed, arguments):
    lengths, allowed = np.asarray([3, LENGTH]), np.eye(LENGTH) == 0
    mask = mha.causal() & allowed & mha.window(2, 9) & mha.packed([2, 4]) & mha.key_lengths(lengths)
    structure = received_by(installed, arguments(mask=mask)).structure
    assert (structure.band, structure.packed, structure.rest) == ((-2, 0), (2, 4), None)
    np.testing.assert_array_equal(structure.key_lengths, lengths)
    np.testing.assert_array_equal(structure.array, allowed)


@pytest.mark.parametrize("poison", [np.nan, np.inf])
def test_keys_that_no_query_sees_arrive_as_zeros(installed, arguments, poison):
    allowed = np.ones((LENGTH, LENGTH), dtype=bool)
    allowed[:, 2] = False
    call = arguments(mask=mha.key_lengths(np.asarray([4, LENGTH])) & allowed)
    unseen = np.zeros((BATCH, LENGTH), dtype=bool)
    unseen[:, 2] = unseen[0, 4:] = True
    expected = {name: np.where(unseen[:, None, :, None], 0, call[name]) for name in ("key", "value")}
    for name in expected:
        call[name] = np.where(unseen[:, None, :, None], poison, call[name])
    problem = received_by(installed, call)
    np.testing.assert_array_equal(problem.key, expected["key"])
    np.testing.assert_array_equal(problem.value, expected["value"])


# other operations get the arguments of the public function


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_gives_its_arguments_to_the_kernel_and_returns_its_answer(installed, name):
    op = name.partition(" ")[0]
    call, arguments, options = OPERATIONS[name]
    installed(a_kernel(op))
    assert call() is A
    assert received[-1][0] == op
    assert all(x is y for x, y in zip(received[-1][1], arguments, strict=True))
    assert received[-1][2] == options


def test_every_operation_that_asks_for_a_kernel_is_tried_here():
    sources = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "mha_core" / "ops").glob("*.py"))
    assert set(re.findall(r'Operation\(\s*"(\w+)"', sources)) == {name.partition(" ")[0] for name in OPERATIONS}


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
def test_a_reason_against_sends_the_call_elsewhere(installed, arguments, supports):
    call = arguments("softcap")
    expected = mha.attention_state(**call)
    installed(a_kernel(supports=supports))
    assert ("sample", "it is Monday") in mha.explain("attention", **call).rejected
    assert_equal(mha.attention_state(**call), expected)
    installed(a_kernel(name="other", priority=50, load="sample_kernels:other_attention"))
    assert (mha.scaled_dot_product_attention(**call) == -ANSWER).all()


def test_supports_is_told_what_is_known_without_looking_at_a_number(installed, arguments):
    calls = []
    installed(*(a_kernel(op, supports=calls.append) for op in ("attention", "gelu")))
    mha.scaled_dot_product_attention(**arguments("causal", "value_dim"))
    mha.gelu(A, approximate="tanh")
    attention, gelu = calls
    assert (attention.op, attention.features) == ("attention", {"causal", "value_dim"})
    assert [attention.shape(name) for name in ("query", "value", "sink")] == [(2, 4, 6, 8), (2, 4, 6, 3), None]
    assert (gelu.op, gelu.dtype, gelu.device, gelu.option("approximate")) == ("gelu", np.dtype("float64"), "cpu", "tanh")


def test_supports_by_name_is_told_the_same_as_a_function(installed):
    calls = []
    installed(
        a_kernel("gelu", supports=calls.append),
        a_kernel("gelu", name="named", supports="sample_kernels:supports", priority=200),
    )
    mha.gelu(A)
    ((op, (call,), _), *_) = received
    assert (op, call) == ("supports", calls[0])


def test_a_name_stands_for_the_function_that_its_module_has_when_the_plugin_comes(installed, monkeypatch):
    plugin = Plugin([a_kernel("gelu", supports="sample_kernels:supports")])
    for reason in ("it is Tuesday", "it is Wednesday"):
        monkeypatch.setattr("sample_kernels.supports", lambda call, reason=reason: reason)
        register(plugin)
        assert mha.explain("gelu", A).rejected[0] == ("sample", reason)
        unregister(plugin)


def test_supports_reads_shapes_by_the_names_of_the_arguments(installed):
    calls = []
    installed(a_kernel("linear", supports=calls.append))
    mha.linear(A, W)
    assert [calls[0].shape(name) for name in ("x", "w", "b")] == [(2, 3), (3, 3), None]


def test_supports_is_asked_once_for_calls_that_look_alike(installed, arguments):
    calls = []
    installed(a_kernel(supports=calls.append))
    for _ in range(3):
        mha.scaled_dot_product_attention(**arguments("causal"))
    assert len(calls) == 1
    mha.scaled_dot_product_attention(**arguments("window"))
    mha.scaled_dot_product_attention(**{name: x[..., :5] for name, x in arguments().items()})
    mha.scaled_dot_product_attention(**{name: x.astype(np.float32) for name, x in arguments().items()})
    assert len(set(calls)) == len(calls) == 4


def test_after_unregister_the_algebra_computes_again(arguments):
    call = arguments("causal", "sink")
    expected = mha.attention_state(**call)
    plugin = Plugin([a_kernel()])
    for _ in range(2):
        register(plugin)
        assert (mha.attention_state(**call).out == ANSWER).all()
        unregister(plugin)
        assert_equal(mha.attention_state(**call), expected)


def test_a_kernel_may_extend_the_backend_of_someone_else(installed, arguments):
    call = arguments("sink")
    there = {name: strict.asarray(x) for name, x in call.items()}
    expected = mha.scaled_dot_product_attention(**call)
    installed(a_kernel(backend="array_api_strict"), a_kernel("relu", backend="array_api_strict"))
    out = mha.scaled_dot_product_attention(**there)
    assert isinstance(out, type(there["query"]))
    assert bool(strict.all(out == ANSWER))
    assert given().xp is strict
    assert mha.relu(there["sink"]) is there["sink"]
    np.testing.assert_array_equal(mha.scaled_dot_product_attention(**call), expected)


def test_larger_operations_reach_the_kernels_of_smaller_ones(installed):
    layer = mha.EncoderLayer.init(d_model=4, num_heads=2, d_ff=4, activation="silu", norm_first=True, seed=0)
    installed(*(a_kernel(op) for op in ("attention", "linear", "layer_norm", "silu")))
    x = np.ones((3, 4), dtype=np.float32)
    with mha.use_kernel("encoder_layer", "algebra"), mha.use_kernel("feed_forward", "algebra"):
        layer(x, mask=mha.causal())
    steps = "layer_norm linear linear linear attention linear layer_norm linear silu linear"
    assert " ".join(op for op, _, _ in received) == steps


def test_weights_read_the_lse_that_a_kernel_gave_and_need_no_kernel_without(installed):
    x = np.zeros((1, 3, WIDTH))
    installed(a_kernel())  # its lse is 0, not log(3)
    lse = mha.attention_state(x, x, x).lse
    np.testing.assert_array_equal(mha.attention_weights(x, x, lse), np.ones((1, 3, 3)))
    np.testing.assert_allclose(mha.attention_weights(x, x), np.full((1, 3, 3), 1 / 3))


WRONG = {
    "integer mask": ({"mask": np.ones((3, 3), dtype=np.int64)}, TypeError, "mask has dtype int64"),
    "shape of a mask": ({"mask": np.ones((7, 9), dtype=bool)}, ValueError, r"mask has shape \(7, 9\)"),
    "softcap": ({"softcap": -1.0}, ValueError, "softcap is -1.0"),
    "softcap of true": ({"softcap": True}, TypeError, "softcap is bool"),
    "sink": ({"sink": np.ones(5)}, ValueError, r"sink has shape \(5,\)"),
    "alignment": ({"context": np.ones((5, 4)), "mask": mha.causal()}, ValueError, "say how they align"),
}


@pytest.mark.parametrize(("options", "error", "message"), WRONG.values(), ids=WRONG)
def test_options_of_a_larger_kernel_are_checked_in_each_call(installed, options, error, message):
    names = frozenset({"mask", "softcap", "sink", "context", "query_offset"})
    installed(a_kernel("multi_head_attention", load="sample_kernels:linear", handles=names))
    x, w = np.ones((3, 4)), np.eye(4)
    right = {"mask": np.ones((3, 3), dtype=bool), "softcap": 1, "sink": np.ones(2)}
    context = {"context": np.ones((5, 4)), "mask": mha.causal(), "query_offset": 0} if "context" in options else {}
    for _ in range(2):
        good = {**{name: right[name] for name in options if name in right}, **context}
        assert mha.multi_head_attention(x, w, w, w, w, 2, **good) is x
        with pytest.raises(error, match=message):
            mha.multi_head_attention(x, w, w, w, w, 2, **options)
        with pytest.raises(error, match=message):
            mha.explain("multi_head_attention", x, w, w, w, w, 2, **options)
