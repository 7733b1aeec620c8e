"""The covering design of the conformance suite: its rows, its problems, and the oracle that judges them."""

import sys
import types
from dataclasses import replace
from functools import partial
from itertools import combinations, product

import naive_attention
import numpy as np
import pytest

import mha_core as mha
from mha_conformance import oracle
from mha_conformance.cases import layer_axes, pieces
from mha_conformance.cases.attention_axes import TRIPLES, axes_of, batch_shape, batches_of, possible, resolved
from mha_conformance.cases.attention_problem import attention_problem
from mha_conformance.cases.covering import Covering
from mha_conformance.cases.kinds import values_of
from mha_conformance.cases.layer_axes import LAYERS
from mha_conformance.cases.pieces import PIECES
from mha_conformance.cases.weights import axes_of_weights
from mha_conformance.find import find
from mha_conformance.judge import designed as judged
from mha_conformance.judge.held import judge_of
from mha_core.algebra.grid import Grid
from mha_core.dispatch.contract import FEATURES
from mha_core.plugin import ATTENTION_FEATURES, AttentionState, Kernel

AXES = {"a": [0, 1, 2], "b": ["x", "y"], "c": [None, 1.5, -1.5, 7], "d": [True, False]}


def occurring(rows, names):
    return {tuple(row[name] for name in names) for row in rows}


@pytest.mark.parametrize("seed", range(5))
def test_every_pair_and_every_chosen_triple_occurs(seed):
    design = Covering(AXES, np.random.default_rng(seed), triples=[("a", "b", "c")])
    rows = list(design)
    for names in [*combinations(AXES, 2), ("a", "b", "c")]:
        assert occurring(rows, names) == set(product(*(AXES[name] for name in names)))
    assert design.missing == 0
    assert 24 <= len(rows) < 3 * 2 * 4 * 2, "24 triples need as many rows, and all combinations would be 48"


def test_pairs_need_far_fewer_rows_than_all_combinations():
    axes = {name: range(5) for name in "abcdefgh"}
    assert 25 <= len(list(Covering(axes, np.random.default_rng(0)))) < 60  # of 390,625


def test_rows_contain_nothing_impossible_and_every_pair_that_is_possible():
    def allowed(row):
        return not (row.get("a") == 2 and row.get("b") == "y") and not (row.get("c") == 7 and row.get("d") is True)

    rows = list(Covering(AXES, np.random.default_rng(0), possible=allowed))
    assert all(map(allowed, rows))
    assert occurring(rows, ("a", "b")) == set(product(AXES["a"], AXES["b"])) - {(2, "y")}
    assert occurring(rows, ("a", "c")) == set(product(AXES["a"], AXES["c"]))


def test_pairs_that_only_whole_rows_exclude_are_left_out_and_counted_out():
    def allowed(row):  # c = 7 needs both a = 0 and a = 1
        return not (row.get("c") == 7 and "a" in row and "d" in row)

    design = Covering(AXES, np.random.default_rng(0), possible=allowed)
    rows, pairs = list(design), sum(len(x) * len(y) for x, y in combinations(AXES.values(), 2))
    assert 7 not in {row["c"] for row in rows}
    assert design.missing == 0 and design.shares()["pairs"] == (0, pairs - 3 - 2 - 2)


def test_seeds_give_other_rows_in_another_order():
    first, again, other = (list(Covering(AXES, np.random.default_rng(seed))) for seed in (0, 0, 1))
    assert first == again and first != other


# the axes of attention


def test_a_kernel_that_declares_little_gets_problems_of_every_axis_that_is_left():
    axes = axes_of(frozenset(), half=False)
    assert axes["bias"] == axes["packed"] == axes["term"] == ["none"] and axes["groups"] == [1] and axes["lse"] == [False]
    assert len(axes["queries"]) == len(axes["keys"]) - 1 == 10 and len(axes["head_dim"]) == 9 and len(axes["layout"]) == 9
    assert [*map(str, axes["batch"])] == ["none", "one", "two", "one element", "three"]


ALWAYS = {"attention=MultiHeadAttention", "feed_forward=FeedForward"}
"""Features that every call of an encoder layer uses."""


@pytest.mark.parametrize(
    ("features", "axes_with"),
    [
        pytest.param(ATTENTION_FEATURES, partial(axes_of, half=True), id="attention"),
        pytest.param(FEATURES["attention_weights"], partial(axes_of_weights, half=True), id="attention_weights"),
        *(pytest.param(FEATURES[op] - ALWAYS, partial(layer_axes.axes_of_layer, op), id=op) for op in LAYERS),
    ],
)
def test_every_feature_is_asked_for_by_some_value(features, axes_with):
    """One value of one axis for each feature: without it, an axis would have fewer values."""
    every = axes_with(features | ALWAYS)
    for feature in features:
        fewer = axes_with((features | ALWAYS) - {feature})
        assert any(len(fewer[name]) < len(every[name]) for name in every), feature


def designs():
    """Yield the axes of each operation, which of their values are possible together, and the triples that must occur."""
    yield pytest.param(axes_of(ATTENTION_FEATURES, half=True), possible, TRIPLES, marks=pytest.mark.full, id="attention")
    yield pytest.param(axes_of((), half=True), possible, TRIPLES, id="attention without features")
    yield pytest.param(axes_of_weights((), half=True), possible, TRIPLES, id="attention_weights")
    for op in PIECES:
        yield pytest.param(pieces.axes_of_piece(op), pieces.possible, (), id=op)
    for op in LAYERS:
        yield pytest.param(layer_axes.axes_of_layer(op, FEATURES[op]), layer_axes.possible, (), id=op)


@pytest.mark.parametrize(("axes", "can_be", "triples"), [*designs()])
def test_every_value_of_every_axis_occurs(axes, can_be, triples):
    """A value that the limits on sizes exclude would be left out without a word."""
    design = list(Covering(axes, np.random.default_rng(0), possible=can_be, triples=triples))
    for name, values in axes.items():
        assert {row[name] for row in design} == set(values), name


def rows(seed, count):
    design = Covering(axes_of(ATTENTION_FEATURES, half=True), np.random.default_rng(seed), possible=possible, triples=TRIPLES)
    rng = np.random.default_rng(seed)
    every = (resolved(values_of(row, rng, possible)) for row in design)
    small = (row for row in every if row["queries"] * row["keys"] < 5000 and row["kv_heads"] * row["groups"] < 10)
    return [next(small) for _ in range(count)]


def problem(row, rng):
    return attention_problem(row, rng, rng)


def test_problems_of_the_design_are_what_they_say(rng):
    """The mask and the bias as arrays equal those of the algebra, and unseen keys are unseen."""
    for row in rows(int(rng.integers(2**32)), 80):
        p = problem(row, rng)
        query, key, value = p.query, p.key, p.value
        options, visible = p.settings.make(p.floats | p.others), p.settings.visible
        heads, shape = query.shape[-3], (*batch_shape(row), query.shape[-3], row["queries"], row["keys"])
        grid = Grid(np, None, range(row["queries"]), range(row["keys"]), options.get("query_offset", 0), np.float64)
        if "mask" in options:
            np.testing.assert_array_equal(np.broadcast_to(options["mask"].block(grid), shape), np.broadcast_to(visible, shape))
        if "bias" in options:
            bias = options["bias"] if isinstance(options["bias"], np.ndarray) else options["bias"].block(grid)
            whole = p.settings.whole_bias(p.floats, "float64")
            np.testing.assert_allclose(np.broadcast_to(bias, shape), np.broadcast_to(whole, shape), rtol=1e-12)
        assert tuple(x.shape[:-3] for x in (query, key, value)) == batches_of(row)
        for name, unseen in p.unseen().items():
            assert unseen.shape == p.floats[name].shape[:-1]
            groups = np.any(np.broadcast_to(visible, shape), axis=-2).reshape(
                *shape[:-3], row["kv_heads"], row["groups"], row["keys"]
            )
            seen = np.broadcast_to(~unseen, (*batch_shape(row), *unseen.shape[-2:]))
            assert (seen | ~groups.any(axis=-2)).all(), "a key that a query sees counts as unseen"
        assert heads == row["kv_heads"] * row["groups"]


def test_the_oracle_over_whole_arrays_equals_the_loop_over_queries(rng):
    for row in rows(int(rng.integers(2**32)), 12):
        p = problem(row, rng)
        arrays, options = (p.query, p.key, p.value), p.oracle
        for got, expected in zip(
            oracle.attention(*arrays, **options), naive_attention.attention(*arrays, **options), strict=True
        ):
            np.testing.assert_allclose(got, expected, rtol=1e-9, atol=1e-12)


@pytest.fixture
def judge_kernel(installed, monkeypatch):
    """Return a function that judges a kernel for NumPy in float64."""

    def judge(op, kernel, features=frozenset()):
        monkeypatch.setitem(sys.modules, "under_test", types.SimpleNamespace(kernel=kernel))
        installed(Kernel("numpy", op, "under test", 1, "under_test:kernel", -1, features))
        backend = find("numpy", None, ["float64"])
        judge = judge_of(backend, "float64", np.random.default_rng(0))
        return judged.judge_design(judge, op, "under test", features)

    return judge


def test_a_fault_beyond_an_edge_is_found(judge_kernel):
    """A kernel that reads only the first 256 keys, which is right for the short problems of other tests."""

    def attention(problem):
        p = problem.with_arrays(problem.query, problem.key[..., :256, :], problem.value[..., :256, :])
        out, lse, _ = oracle.attention(p.query, p.key, p.value, scale=p.scale)
        return AttentionState(out.astype(p.query.dtype), lse.astype(p.query.dtype))

    with pytest.raises(AssertionError, match="within"):
        judge_kernel("attention", attention, frozenset({"lse"}))


# pieces


EDGES = {
    "linear": lambda x, w, b: x.shape[-1] == 257,
    "layer_norm": lambda x, weight, bias, eps: weight is None and bias is not None,
    "rms_norm": lambda x, weight, eps: eps > 0.1 and x.ndim == 4,
    "gelu": lambda x, approximate: x.size and abs(x).max() > 60,
    "relu": lambda x: not x.flags.c_contiguous,
    "silu": lambda x: x.shape[-1] == 4097,
    "rotary": lambda x, cos, sin, interleaved: interleaved and 1 < cos.shape[-1] < x.shape[-1] // 2,
}


@pytest.mark.parametrize("op", PIECES)
def test_a_kernel_of_a_piece_that_is_wrong_beyond_an_edge_is_found(judge_kernel, op):
    def kernel(*arrays, **options):
        with mha.use_kernel(op, "algebra"):
            y = getattr(mha, op)(*arrays, **options)
        return np.roll(y, 1, axis=-1) if EDGES[op](*arrays, **options) else y

    with pytest.raises(AssertionError, match="within") as caught:
        judge_kernel(op, kernel)
    assert caught.value.__notes__[0].startswith("the problem: ")


# layers


@pytest.mark.parametrize("op", LAYERS)
def test_the_features_of_a_call_are_those_that_its_kernel_declares(op, judge_kernel):
    """A kernel that declares few features computes every problem that the design has for it."""
    few = {
        "encoder_layer": {
            *("attention=MultiHeadAttention", "feed_forward=FeedForward", "norm_1=RMSNorm", "norm_2=LayerNorm"),
            *("feed_forward.activation=silu", "attention.b_k", "scale"),
        },
        "multi_head_attention": {"context", "sink"},
        "feed_forward": set(),
    }[op]

    def kernel(*arguments, **options):
        with mha.use_kernel(op, "algebra"):
            return arguments[0](arguments[1], **options) if op == "encoder_layer" else getattr(mha, op)(*arguments, **options)

    verdict = judge_kernel(op, kernel, frozenset(few))
    assert verdict.computed and not verdict.refused


def _dropout_of_attention_only(layer, x, *, dropout=None, **options):
    keeps = {} if dropout is None else {name: keep for name, keep in dropout.keeps.items() if name == "attention"}
    return layer(x, dropout=mha.Dropout(0.25, keeps), **options)


def _weights_of_an_earlier_call(layer, x, _kept={}, **options):  # noqa: B006
    earlier = _kept.setdefault(tuple(id(w) for w in layer.arrays().values()), layer.map(np.copy))
    return earlier(x, **options)


def changed(change):
    """Return a kernel that computes another layer than it is given."""
    return lambda layer, x, **options: change(layer)(x, **options)


WRONG_LAYERS = {
    "eps of the first norm": changed(lambda layer: replace(layer, norm_2=replace(layer.norm_2, eps=layer.norm_1.eps))),
    "no bias of values": changed(lambda layer: replace(layer, attention=replace(layer.attention, b_v=None))),
    "no norm of queries": changed(lambda layer: replace(layer, attention=replace(layer.attention, norm_q=None))),
    "no norm after the network": changed(lambda layer: replace(layer, post_norm_2=None)),
    "dropout of attention only": _dropout_of_attention_only,
    "weights of an earlier call": _weights_of_an_earlier_call,
}


@pytest.mark.parametrize("wrong", WRONG_LAYERS)
def test_a_wrong_kernel_of_an_encoder_layer_is_found(judge_kernel, wrong):
    def kernel(layer, x, **options):
        with mha.use_kernel("encoder_layer", "algebra"):
            return WRONG_LAYERS[wrong](layer, x, **options)

    with pytest.raises(AssertionError, match=r"within|bits"):
        judge_kernel("encoder_layer", kernel, FEATURES["encoder_layer"])


# budgets


def problems_of(op, **settings):
    judge = judge_of(find("numpy", None, None, **settings), "float32", np.random.default_rng(3))
    return judged.judge_design(judge, op, "algebra", FEATURES.get(op, frozenset()))


def test_the_number_of_problems_is_that_of_the_design():
    """Nothing but the settings decides it: not the time that a problem takes."""
    quick, part, full = (problems_of("relu", **settings).computed for settings in ({"quick": True}, {"part": 0.25}, {}))
    rows = {
        name: len([*judged.design_of("relu", (), "float32", np.random.default_rng(3), quick=name)]) for name in (True, False)
    }
    assert (quick, full) == (rows[True], rows[False]) and full > 5 * quick
    assert part == -(-full // 4)


def test_a_kernel_that_refuses_most_problems_gets_as_many_more_as_the_floor_needs(judge_kernel, monkeypatch):
    monkeypatch.setattr(judged, "FLOOR", 10**6)

    def relu(x):
        if x.ndim == 1:
            raise mha.KernelUnsupported("vectors")
        return np.maximum(x, 0)

    verdict = judge_kernel("relu", relu)
    refused = sum(verdict.refused.values())
    rows = len([*judged.design_of("relu", (), "float64", np.random.default_rng(0), quick=False)])
    assert refused and verdict.computed + refused == 2 * rows, "as many random problems as rows, at most"
