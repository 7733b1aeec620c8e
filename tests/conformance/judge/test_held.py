"""Results beside their bounds: missing results, bounds that are found in steps, and arguments in bfloat16."""

import needs
import numpy as np
import pytest

from mha_conformance.cases.pieces import piece_problem
from mha_conformance.cases.problem import Problem
from mha_conformance.find import find
from mha_conformance.judge.held import judge_of

ROW = {"rows": (3,), "width": 4, "spread": 1.0, "layout": "contiguous"}


class TwoResults(Problem):
    """Two results that are 1; the second bound is ten times as wide as the first."""

    bounds_made = 0

    def bounds(self, floats, dtype, *, rounds_weights):
        for bound in (0.01, 0.1):
            self.bounds_made += 1
            yield {name: (np.ones(1), np.full(1, bound)) for name in ("y", "z")}


def assert_right(problem, **results):
    judge = judge_of(find("numpy", None, ["float64"]), "float64")
    arrays = {name: np.full(1, x) for name, x in results.items()}
    judge.assert_right(arrays, np.ones(1), problem, {})


@pytest.mark.parametrize(("y", "bounds_made"), [(1.005, 1), (1.05, 2)])
def test_a_wider_bound_is_made_only_for_a_result_that_exceeds_the_first(y, bounds_made):
    problem = TwoResults({}, {})
    assert_right(problem, y=y, z=1.0)
    assert problem.bounds_made == bounds_made


def test_a_result_beyond_the_widest_bound_is_wrong():
    with pytest.raises(AssertionError, match=r"z\[0\] is 1.2; expected 1 within 0.1"):
        assert_right(TwoResults({}, {}), y=1.0, z=1.2)


@pytest.mark.parametrize("results", [{"y": 1.0}, {"y": 1.0, "z": 1.0, "more": 1.0}], ids=["missing", "more"])
def test_results_have_the_names_of_the_exact_ones(results):
    with pytest.raises(AssertionError, match=f"the results are {', '.join(results)}; expected y, z"):
        assert_right(TwoResults({}, {}), **results)


@needs.installed("torch")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_call_in_bfloat16_is_judged_where_numpy_cannot_read_its_arguments(dtype):
    of_kernel = judge_of(find("torch", None, [dtype]), dtype).of("relu", "algebra")
    assert of_kernel.judge(piece_problem("relu", ROW, np.random.default_rng(0)))
    assert of_kernel.watched == (dtype == "float32")
