"""Right twins stay within the bounds on problems of the covering design. At an edge, right twins pass and wrong ones do not."""

from functools import partial
from itertools import chain, islice

import numpy as np
import pytest
import right_twins
from right_twins import ATTENTION, GRADIENTS, HANDLES, KERNELS, NAME
from right_twins.attention import LOG2_E, ORDER, Dense, early, flushed, in_base_2, late, tiles_of, with_flushes
from right_twins.gradients import Flushing
from sample_kernels import registered

import mha_core as mha
from mha_conformance.find import find
from mha_conformance.judge.designed import design_of, drawn
from mha_conformance.judge.held import judge_of
from mha_conformance.oracle.attention_gradients import attention_gradients
from mha_conformance.oracle.tolerance import LARGEST, assert_within, exact_attention

PROBLEMS = 50
"""Problems of each size for each seed."""


def problems(op, dtype, rng):
    """Yield problems of a kernel that declares every feature, small ones first."""
    for small in (True, False):
        design = design_of(op, HANDLES[op], dtype, rng, more={"room": ("small",)} if small else None)
        for row in islice(chain(design, design.random(rng)), PROBLEMS):
            yield drawn(op, row, np.random.default_rng(int(rng.integers(2**32))), rng)


@pytest.mark.full
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("op", KERNELS)
def test_right_twins_stay_within_the_bounds(op, dtype, seed):
    """The oracle's answer to a problem is computed once for all of them."""
    rng, failed = np.random.default_rng(seed), {}
    judge = judge_of(find("numpy", None, [dtype]), dtype, rng)
    with registered(right_twins), mha.use_kernel(op, NAME):
        for problem in problems(op, dtype, rng):
            arrays, floats = judge.arrays(problem)
            expected = problem.expected(floats, dtype, rounds_weights=False)
            for name, twin in KERNELS[op].items():
                right_twins.chosen[op] = twin
                try:
                    for result, x in problem.call(arrays).items():
                        assert_within(result, x, *expected[result])
                except AssertionError as error:
                    failed[name] = f"{error}; {problem}"
    assert not failed, failed


def test_there_are_at_least_15_right_twins():
    assert len(ATTENTION) >= 15 and len(GRADIENTS) >= 8


# edges: a right twin uses up much of a term of the bound, and a wrong twin a little more than there is


def judged(twin, scores, values, **sink):
    """Judge one row of scores, given as a bias, by its output and lse; return which share of the bound the error is."""
    bias, value = np.asarray(scores, np.float32)[None, None], np.asarray(values, np.float32)[None, :, None]
    query, key = np.zeros((1, 1, 1), np.float32), np.zeros(value.shape, np.float32)
    sink = {name: np.asarray([x], np.float32) for name, x in sink.items()}
    right_twins.chosen["attention"] = twin
    with registered(right_twins), mha.use_kernel("attention", NAME):
        got = mha.attention_state(query, key, value, bias=bias, **sink)
    exact = exact_attention(query, key, value, dtype="float32", bias=bias.astype(float), **sink)
    exact.assert_near(*got)
    bounds = (got.out, exact.out, exact.out_bound), (got.lse, exact.lse, exact.lse_bound)
    return max((np.abs(x - y) / bound).max() for x, y, bound in bounds)


def in_base(log2_e):
    """Return a twin in which an exponential is a power of two, with this number for log2(e)."""
    base = np.exp2, np.log2, log2_e
    return Dense(order=(*ORDER, partial(in_base_2, log2_e=log2_e)), attend=late(base))


def test_scores_in_base_2_have_two_more_roundings_and_log2_of_e_no_error_of_4_units():
    """The sink times log2(e), and its difference from the score, are rounded down by nearly half a unit."""
    of_two = partial(judged, scores=[-0.13191383], values=[1.0], sink=44.762016)
    assert of_two(in_base(LOG2_E)) > 0.45
    with pytest.raises(AssertionError, match="times the bound"):
        of_two(in_base(LOG2_E + 4 * 2.0**-23))


def test_products_below_the_smallest_normal_number_are_flushed_and_others_not():
    """All 16 are lost: of 0.99 2^-126 each, or of twice as much."""
    row = np.zeros(16), np.full(16, 0.99 * 2.0**-122)
    assert judged(Dense(attend=early(with_flushes)), *row) > 0.9
    wrong = partial(with_flushes, flushed=partial(flushed, times=2))
    with pytest.raises(AssertionError, match="times the bound"):
        judged(Dense(attend=early(wrong)), row[0], 2 * row[1])


def test_terms_below_half_a_unit_of_their_sum_are_absorbed_and_others_not():
    """Beside a sink of 1, 4096 keys have weights of 0.9 2^-24, or of four times as much."""
    row = np.full(4096, np.log(0.9 * 2.0**-24)), np.ones(4096)
    assert judged(Dense(attend=tiles_of(1)), *row, sink=0.0) > 0.7
    with pytest.raises(AssertionError, match="times the bound"):
        judged(Dense(attend=late(exp=lambda x: flushed(np.exp(x), 2.0**104))), row[0] + np.log(4), row[1], sink=0.0)


def test_weights_below_2_to_the_minus_99_count_as_0_and_greater_ones_do_not():
    """Beside a sink of 1, the weight of the only key is 0.9 2^-99, or four times as much."""

    def dropping(times):
        return Dense(attend=late(exp=lambda x: flushed(np.exp(x), times * 2.0**27)))

    score = np.log(0.9 * 2.0**-99)
    assert judged(dropping(1), [score], [1.0], sink=0.0) > 0.8
    with pytest.raises(AssertionError, match="times the bound"):
        judged(dropping(4), [score + np.log(4)], [1.0], sink=0.0)


def gradient_of_bias(twin, ds):
    """Judge the gradient of the bias of two keys, which is +-ds, in a row without scores."""
    query, key, bias = (np.zeros(shape, np.float32) for shape in ((1, 1, 1), (1, 2, 1), (1, 1, 2)))
    value, d_out = np.asarray([[[2 * ds], [-2 * ds]]], np.float32), np.ones((1, 1, 1), np.float32)
    right_twins.chosen["attention_vjp"] = twin
    with registered(right_twins), mha.use_kernel("attention_vjp", NAME):
        _, pullback = mha.vjp(mha.scaled_dot_product_attention, query, key, value, wrt=lambda name: name == "bias", bias=bias)
        got = pullback(d_out).options["bias"]
    exact, bound = attention_gradients(query, key, value, d_out, dtype="float32", bias=bias, of_bias=lambda x: x)["bias"]
    assert_within("d_bias", got, exact, bound)
    return (np.abs(got - exact) / bound).max()


def test_a_gradient_below_the_smallest_normal_number_is_flushed_and_others_not():
    """One flush is allowed; 10 times as much is more than the flushes of all steps may lose together."""
    assert gradient_of_bias(Flushing, 0.99 * 2.0**-126) > 0.1
    with pytest.raises(AssertionError, match="times the bound"):
        gradient_of_bias(type("Wrong", (Flushing,), {"flushed": staticmethod(partial(flushed, times=10))}), 9.9 * 2.0**-126)


def test_a_result_beyond_the_largest_number_must_be_infinite_and_one_beside_it_may_be():
    exact, bound = np.array([1e5, -1e5, 65500.0, 10.0]), np.full(4, 40.0)
    for right in ([np.inf, -np.inf, np.inf, 10.0], [np.inf, -np.inf, 65504.0, 10.0]):
        assert_within("out", np.array(right, dtype=np.float32), exact, bound, LARGEST["float16"])
    for wrong in ([65504.0, -np.inf, 65504.0, 10.0], [np.inf, np.inf, 65504.0, 10.0], [np.inf, -np.inf, 65504.0, np.inf]):
        with pytest.raises(AssertionError, match="out"):
            assert_within("out", np.array(wrong, dtype=np.float32), exact, bound, LARGEST["float16"])
