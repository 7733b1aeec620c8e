"""Arguments of kernels: a prepared problem, or the arguments of the public function, checked in each call."""

from functools import partial

import numpy as np
import pytest
from sample_kernels import BATCH, HEADS, LENGTH, OPERATIONS, WIDTH, A, a_call, a_kernel, given, received

import mha_core as mha
from mha_core.dispatch import contract
from mha_core.dispatch.backend import load
from mha_core.plugin import AttentionProblem


@pytest.fixture
def arguments(rng):
    return partial(a_call, rng)


# attention


@pytest.fixture(params=[None, "sample_kernels:prepare"], ids=["plain", "prepared"])
def received_arrays(installed, request):
    """Return the function that returns the arrays which a kernel receives: in a first call, and in a second with its plan."""
    installed(a_kernel(prepare=request.param))

    def arrays(**call):
        out = [mha.scaled_dot_product_attention(**call) for _ in range(2)][-1]
        assert out.shape == (*call["query"].shape[:-1], call["value"].shape[-1])
        op, arguments, _ = received[-1]  # masks with arrays are never prepared
        return arguments[:3] if op == "prepared" else [getattr(given(), name) for name in ("query", "key", "value")]

    return arrays


def received_by(installed, call):
    installed(a_kernel())
    mha.scaled_dot_product_attention(**call)
    return given()


def test_a_problem_without_options_says_so(installed, arguments):
    call = arguments(scale=0.25)
    problem = received_by(installed, call)
    assert isinstance(problem, AttentionProblem)
    assert problem.xp is load("numpy").xp
    assert (problem.scale, problem.mask, problem.bias, problem.softcap, problem.sink) == (0.25, None, None, None, None)
    assert problem.structure.keys == range(LENGTH)
    assert problem.rows_shape == (BATCH, HEADS, LENGTH)


def test_arrays_are_not_copied(received_arrays, arguments):
    call = arguments()
    assert all(array is call[name] for array, name in zip(received_arrays(**call), ("query", "key", "value"), strict=True))


def test_options_are_passed_unchanged(installed, arguments):
    call = arguments("softcap", "sink", "alibi", "grouped_query")
    problem = received_by(installed, call)
    assert (problem.softcap, problem.sink, problem.bias) == (call["softcap"], call["sink"], call["bias"])
    assert problem.num_groups == 2
    assert problem.features == {"softcap", "sink", "alibi", "grouped_query"}
    assert problem.scale == pytest.approx(WIDTH**-0.5)


def test_arrays_of_two_axes_become_one_head_and_the_result_has_two_axes_again(received_arrays):
    x = np.ones((3, WIDTH))
    assert [array.shape for array in received_arrays(query=x, key=x, value=x)] == [(1, 3, WIDTH)] * 3


def test_keys_beyond_a_scalar_length_are_dropped(received_arrays, arguments):
    call = arguments(mask=mha.key_lengths(4))
    for array, name in zip(received_arrays(**call), ("query", "key", "value"), strict=True):
        np.testing.assert_array_equal(array, call[name][..., : LENGTH if name == "query" else 4, :])


def test_a_window_keeps_the_keys_it_reaches_and_its_band_is_relative_to_them(installed, rng):
    query, key = rng.normal(size=(1, 2, WIDTH)), rng.normal(size=(1, 10, WIDTH))
    mask = mha.window(1, 1)
    problem = received_by(installed, {"query": query, "key": key, "value": key, "mask": mask, "query_offset": 5})
    assert problem.structure.keys == range(4, 8)  # queries at 5 and 6
    assert problem.structure.band == (0, 2)  # key 4 + j is within 1 of position 5 + i
    np.testing.assert_array_equal(problem.key, key[:, 4:8])


UNRESTRICTED = [mha.causal(), mha.window(99, 99), mha.packed([LENGTH, 0]), mha.prefix(99), ~~mha.chunks(99)]


@pytest.mark.parametrize("mask", UNRESTRICTED, ids=repr)
def test_a_mask_that_hides_nothing_leaves_no_feature(installed, arguments, mask):
    problem = received_by(installed, arguments(mask=mask, query_offset=LENGTH - 1))
    assert (problem.structure.keys, problem.features) == (range(LENGTH), frozenset())


def test_a_conjunction_of_masks_is_split_by_kind(installed, arguments):
    lengths, allowed = np.asarray([3, LENGTH]), np.eye(LENGTH) == 0
    mask = mha.causal() & allowed & mha.window(2, 9) & mha.packed([2, 4]) & mha.key_lengths(lengths)
    structure = received_by(installed, arguments(mask=mask)).structure
    assert (structure.band, structure.packed, structure.rest) == ((-2, 0), (2, 4), None)
    np.testing.assert_array_equal(structure.key_lengths, lengths)
    np.testing.assert_array_equal(structure.array, allowed)


@pytest.mark.parametrize("poison", [np.nan, np.inf])
@pytest.mark.parametrize("mask", ["arrays", "expression"])
def test_keys_that_no_query_sees_are_zeroed(received_arrays, arguments, poison, mask):
    """Key 2 is in the middle, where no slice can drop it."""
    unseen = np.zeros((BATCH, LENGTH), dtype=bool)
    unseen[:, 2] = unseen[0, 4:] = True
    hidden = mha.array_mask(np.arange(LENGTH) != 2) & mha.key_lengths(np.asarray([4, LENGTH]))
    if mask == "expression":
        unseen[0, 4:], hidden = False, mha.prefix(2) | ~mha.prefix(3)
    call = arguments(mask=hidden)
    expected = [np.where(unseen[:, None, :, None], 0, call[name]) for name in ("key", "value")]
    call |= {name: np.where(unseen[:, None, :, None], poison, call[name]) for name in ("key", "value")}
    for array, wanted in zip(received_arrays(**call)[1:], expected, strict=True):
        np.testing.assert_array_equal(array, wanted)


# other operations pass on the arguments of the public function


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_passes_its_arguments_to_the_kernel_and_returns_its_result(installed, name):
    op = name.partition(" ")[0]
    call, arguments, options = OPERATIONS[name]
    installed(a_kernel(op))
    assert call() is A
    assert received[-1][0] == op
    assert all(x is y for x, y in zip(received[-1][1], arguments, strict=True))
    assert received[-1][2] == options


def test_every_operation_that_asks_for_a_kernel_is_tried_here():
    elsewhere = {"attention", "attention_weights", "feed_forward", "multi_head_attention", "encoder_layer"}
    elsewhere |= {"attention_vjp", "adamw", *contract.VJPS, *contract.LAYER_VJPS}  # tests/core/ops/test_gradient_kernels.py
    assert set(contract.OPERATIONS) - elsewhere == {name.partition(" ")[0] for name in OPERATIONS}


# larger operations


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
