"""Kernels on the problems of covering designs: right ones pass, wrong ones do not; the design decides how many are judged."""

import sys
import types
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest

import mha_core as mha
from mha_conformance import oracle
from mha_conformance.cases.kinds import least_of, smallest
from mha_conformance.cases.layer_axes import LAYERS
from mha_conformance.cases.pieces import PIECES
from mha_conformance.find import find
from mha_conformance.judge import designed as judged
from mha_conformance.judge import smaller
from mha_conformance.judge.held import judge_of
from mha_core.algebra.attention import attention_state
from mha_core.dispatch.context import ALGEBRA
from mha_core.dispatch.contract import FEATURES
from mha_core.plugin import ATTENTION_FEATURES, AttentionState, Kernel

OP = "attention_weights"
"""An operation of which NumPy has no kernel."""


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


def test_a_library_forgets_its_programs_between_problems(monkeypatch):
    backend, cleared = find("numpy", None, ["float64"]), []
    record = replace(backend.loaded.record, clear_caches=lambda: cleared.append(len(cleared)))
    monkeypatch.setattr(backend.loaded, "record", record)
    verdict = judged.judge_design(judge_of(backend, "float64", np.random.default_rng(0)), "layer_norm", ALGEBRA, ())
    assert len(cleared) == verdict.computed // judged.CLEARED > 0


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
    "linear_int8": lambda x, w, b: w.shape[1] == 257,
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
            y = getattr(mha, op.removesuffix("_int8"))(*arrays, **options)
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


def _with_eps(norm, other):
    """Return a norm with the eps of another; itself if one of them has none."""
    return replace(norm, eps=other.eps) if hasattr(norm, "eps") and hasattr(other, "eps") else norm


def changed(change):
    """Return a kernel that computes another layer than it is given."""
    return lambda layer, x, **options: change(layer)(x, **options)


WRONG_LAYERS = {
    "eps of the first norm": changed(lambda layer: replace(layer, norm_2=_with_eps(layer.norm_2, layer.norm_1))),
    "eps of the keys' norm": changed(
        lambda layer: replace(
            layer, attention=replace(layer.attention, norm_q=_with_eps(layer.attention.norm_q, layer.attention.norm_k))
        )
    ),
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
    quick, part, full = (problems_of(OP, **settings).computed for settings in ({"quick": True}, {"part": 0.25}, {}))
    pairs, triples = (len(judged.whole_design(OP, False, triples, 0)[1]) for triples in (False, True))
    assert (quick, full) == (pairs, triples) and full > 3 * quick
    assert part == -(-full // 4)


@pytest.mark.parametrize(
    ("dtypes", "by_triples"),
    [(None, {"float32", "float16"}), (["float64", "float32"], {"float64"}), (["bfloat16"], {"bfloat16"})],
)
def test_triples_are_judged_in_the_first_dtype_of_each_width(dtypes, by_triples):
    backend = find("numpy", None, dtypes)
    assert {dtype for dtype in backend.dtypes if judge_of(backend, dtype).triples} == by_triples
    assert not any(judge_of(find("numpy", None, dtypes, quick=True), dtype).triples for dtype in backend.dtypes)


def test_a_kernel_that_refuses_most_problems_gets_as_many_more_as_the_floor_needs(judge_kernel, monkeypatch):
    monkeypatch.setattr(judged, "FLOOR", 10**6)

    def relu(x):
        if x.ndim == 1:
            raise mha.KernelUnsupported("vectors")
        return np.maximum(x, 0)

    verdict = judge_kernel("relu", relu)
    refused = sum(verdict.refused.values())
    rows = len(judged.whole_design("relu", False, True, 0)[1])
    assert refused and verdict.computed + refused == 2 * rows, "as many random problems as rows, at most"


# one design for all kernels


SOME = {
    "attention": {"causal", "lse", "grouped_query"},
    "attention_vjp": {"bias", "d_lse"},
    "encoder_layer": {"attention=MultiHeadAttention", "feed_forward=FeedForward", "norm_1=RMSNorm", "norm_2=LayerNorm"},
}


@pytest.mark.parametrize("op", SOME)
def test_the_rows_of_a_kernel_of_few_features_contain_every_pair_of_values_that_it_has(op):
    design = judged.DESIGNS[op]
    axes = design.axes(SOME[op] | {"feed_forward.activation=silu"}, False)
    whole, rows = judged.whole_design(op, False, False, 0)
    rows = [judged.within(row, axes, design.possible, at) for at, row in enumerate(rows)]
    assert all(row[name] in axes[name] for row in rows for name in axes)
    assert all(design.possible(smallest(row)) for row in rows)
    counted = whole.counted(axes)
    for row in rows:
        counted.add(row)
    occurred, all_pairs = counted.shares()["pairs"]
    assert occurred == all_pairs > 100
    least = [(name, least_of(value)) for name, values in axes.items() for value in values]
    pairs = (dict(pair) for pair in combinations(least, 2) if pair[0][0] != pair[1][0])
    assert all_pairs >= sum(map(design.possible, pairs)) - len(least), "but for a few that only whole rows exclude"


def test_kernels_of_an_operation_get_the_same_problems(judge_kernel):
    seen = []

    def relu(x):
        seen[-1].append(x.tobytes())
        return np.maximum(x, 0)

    seen.append([])
    judge_kernel("relu", relu)
    seen.append([])
    backend = find("numpy", None, ["float64"])
    judged.judge_design(judge_of(backend, "float64", np.random.default_rng(7)), "relu", "under test", ())
    assert seen[0] == seen[1]


def test_the_algebra_is_judged_on_less_where_the_backend_has_kernels(installed):
    pairs = problems_of(OP, quick=True).computed
    installed(Kernel("numpy", OP, "own", 1, "no_module:weights", -1, frozenset()))
    assert problems_of(OP).computed == pairs
    assert problems_of(OP, quick=True).computed == -(-pairs // 4)


# smaller problems


def test_a_failure_names_a_smaller_problem_that_fails_too(judge_kernel):
    """The fault shows with a bias and more than 60 keys: nothing else is left of the problem."""

    def attention(problem):
        state = attention_state(problem)
        return state._replace(out=state.out * 1.01) if problem.bias is not None and problem.key.shape[-2] > 60 else state

    with pytest.raises(AssertionError, match="within") as caught:
        judge_kernel("attention", attention, ATTENTION_FEATURES)
    smaller, error = caught.value.__notes__[1].split("\n")
    assert smaller == "a smaller problem that fails too: queries=1, keys=61, bias=scores"
    assert error.startswith("AssertionError: out[0, 0, 0] is ")


def test_a_failure_that_a_call_by_itself_does_not_show_says_so(judge_kernel):
    right, wrong = [], []

    def relu(x):
        now = len(right) > 20 and not wrong and np.isfinite(x).any()
        (wrong if now else right).append(x)
        return np.maximum(x, 0) + now

    with pytest.raises(AssertionError) as caught:
        judge_kernel("relu", relu)
    assert caught.value.__notes__[1] == "a problem like it is computed right in a call by itself: it may fail only after others"


@pytest.mark.parametrize(
    ("value", "values", "plainer"),
    [
        (257, ["the same", 0, 1, 127], ["the same", 0, 1, 127, 128, 256]),
        (3, [1, 2, 4], [1, 2]),
        ("mask", ["none", "bias", "mask", "all"], ["none", "bias"]),
        (0.3, [None, 0.0, 0.5], [None, 0.0, 0.5]),
        (True, [False, True], [False]),
        (None, [None, 2], []),
    ],
)
def test_plainer_values_are_smaller_numbers_and_those_before(value, values, plainer):
    assert smaller._plainer(value, values) == plainer
