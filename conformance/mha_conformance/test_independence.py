"""Promise 7: NaN and infinity reach only the results of the queries that see them."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from .cases.features import problem_with
from .judge.held import Judge
from .oracle import tolerance
from .probes.computed_by import ComputedBy

SECTION = "promises"
pytestmark = pytest.mark.promise(7)


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
@pytest.mark.parametrize("where", ["query", "key", "value"])
def test_7_nan_and_infinity_reach_only_the_queries_that_see_them(judge: Judge, attention_by: ComputedBy, where: str) -> None:
    """In a query they reach its own results, in a key or value those of the queries that see it; in a value, as they are.

    On a GPU, those in a value may reach others: the weight of 0 times NaN is NaN in a product, and looking for it would wait.
    """
    if where != "query" and attention_by.kernel is not None:
        pytest.skip("a kernel by itself need not look for NaN")
    if where != "query" and judge.on_host is not True:
        pytest.skip("the arrays are not in host memory")
    features = {"causal", "sink"} if where == "query" else {"causal", "array_mask", "packed"}
    for length, feature in product((70,) if judge.quick else (6, 70, 300), sorted(features & attention_by.handles)):
        problem = problem_with([feature, "lse"], judge.rng, length)
        arrays, floats = judge.arrays(problem, poison=False)
        expected = problem.expected(floats, judge.dtype, rounds_weights=judge.rounds_weights)
        for wrong in (np.nan, np.inf, -np.inf):
            at = int(judge.rng.integers(1, length))
            given = floats[where].copy()
            given[..., at, : 1 if where == "value" else None] = wrong
            got = problem.call({**arrays, where: judge.array(given)})
            visible = np.broadcast_to(problem.settings.visible, problem.scores_shape)
            reached = visible[..., at] if where != "query" else np.broadcast_to(np.arange(length) == at, visible.shape[:-1])
            for name, (exact, bound) in expected.items():
                y, of_name = judge.numpy(got[name]), reached
                if name == "out":
                    of_name = np.broadcast_to(reached[..., None], exact.shape).copy()
                    of_name[..., 1 if where == "value" else exact.shape[-1] :] = False
                    is_right = np.isnan(y) if np.isnan(wrong) else (y == wrong) | (where == "key")
                    assert where == "query" or is_right[of_name].all(), f"{wrong} does not reach all queries that see it"
                elif where == "value":
                    of_name = np.zeros_like(reached)
                tolerance.assert_within(name, y[~of_name], exact[~of_name], bound[~of_name])
