"""The covering design of the conformance suite: its rows, and problems of attention."""

from functools import partial
from itertools import combinations, product

import naive_attention
import numpy as np
import pytest

from mha_conformance import oracle
from mha_conformance.cases import layer_axes, pieces
from mha_conformance.cases.attention_axes import TRIPLES, axes_of, batch_shape, batches_of, possible, resolved
from mha_conformance.cases.attention_problem import attention_problem
from mha_conformance.cases.covering import Covering
from mha_conformance.cases.kinds import values_of
from mha_conformance.cases.layer_axes import LAYERS
from mha_conformance.cases.pieces import PIECES
from mha_conformance.cases.weights import axes_of_weights
from mha_core.algebra.grid import Grid
from mha_core.dispatch.contract import FEATURES
from mha_core.plugin import ATTENTION_FEATURES

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
    assert design.missing == 0 and design.counted().shares()["pairs"] == (0, pairs - 3 - 2 - 2)


def test_seeds_give_other_rows_in_another_order():
    first, again, other = (list(Covering(AXES, np.random.default_rng(seed))) for seed in (0, 0, 1))
    assert first == again and first != other


def test_every_two_options_are_given_without_the_others():
    axes = {name: ["none", "some", "more"] for name in "abcdef"} | {"size": [1, 2]}
    plain = dict.fromkeys("abcdef", "none")

    def allowed(row):
        return not (row.get("a", "none") != "none" and row.get("b", "none") != "none")

    design = Covering(axes, np.random.default_rng(0), possible=allowed, plain=plain, alone="abcde")
    given = {tuple(name for name in "abcdef" if row[name] != "none") for row in design}
    assert {pair for pair in combinations("abcde", 2) if pair != ("a", "b")} < given
    assert design.missing == 0


def test_half_of_the_rows_with_two_axes_alone_have_the_usual_values_of_others():
    usual = {"width": "the same", "batch": "none"}
    axes = {**dict.fromkeys("abcdefgh", ("none", 1, 2)), "width": ["the same", *range(9)], "batch": ["none", *range(4)]}
    design = Covering(axes, np.random.default_rng(0), plain=dict.fromkeys("abcdefgh", "none"), alone="abcdefgh", usual=usual)
    alone = [row for row in design if sum(row[name] != "none" for name in "abcdefgh") == 2]
    assert set(combinations("abcdefgh", 2)) == {tuple(n for n in "abcdefgh" if row[n] != "none") for row in alone}
    share = sum(usual.items() <= row.items() for row in alone) / len(alone)
    assert 0.3 < share < 0.7
    assert {row["width"] for row in alone} == {*axes["width"]}


# the axes of attention


def test_a_kernel_that_declares_little_gets_problems_of_every_axis_that_is_left():
    axes = axes_of(frozenset(), half=False)
    assert axes["bias"] == axes["packed"] == axes["term"] == ["none"] and axes["groups"] == [1] and axes["lse"] == [False]
    assert len(axes["queries"]) == len(axes["keys"]) - 3 == 10 and len(axes["head_dim"]) == 9 and len(axes["layout"]) == 9
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
