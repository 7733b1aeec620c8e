"""Prepared calls: what ``Kernel.prepare`` returns for one problem is right for every problem that has the same key.

A function is prepared by a first call, and then called with other numbers, with other strides of the same shapes, and from
other threads. Each result is compared with the oracle; equal arrays must give equal bits; and no call may change an earlier
result.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from mha_core.plugin import Kernel

from .cases.attention_problem import ARGUMENTS, AttentionProblem, attention_problem
from .cases.features import FEATURES, go_together, row_with
from .cases.kinds import Row
from .judge.held import Judge, noted
from .judge.layouts import VIEWS
from .probes.recorder import recorded
from .report.sections import REFUSED_EVERY_CALL

SECTION = "kernels"
HAVE_ARRAYS = {"array_mask", "key_lengths", "bias", "relative_bias"}
"""Features of calls that are never prepared, since their masks or biases hold arrays."""


def judge_prepared(judge: Judge, row: Row) -> None:
    """Make calls of one key, with new numbers in every array: the first prepares, and all must be right."""
    seed = int(judge.rng.integers(2**32))

    def numbers() -> AttentionProblem:
        return attention_problem(row, np.random.default_rng(seed), judge.rng)

    def judged(problem: AttentionProblem, arrays: dict[str, Any], floats: dict[str, np.ndarray], what: str) -> dict[str, Any]:
        with noted(f"a prepared call {what}"):
            results = problem.call(arrays)
            judge.assert_right(results, arrays["query"], problem, floats)
        return results

    first, second = numbers(), numbers()
    arrays, floats = judge.arrays(first, poison=False)
    results = judged(first, arrays, floats, "that was the first of its key")
    before = judge.bits(results)
    others, floats = judge.arrays(second, poison=False)
    expected = judge.bits(judged(second, others, floats, "with other numbers than the first"))
    assert judge.bits(results) == before, "a prepared call changed the result of the one before"
    assert judge.bits(first.call(arrays)) == before, "the first call returned other bits a second time"
    for name, view in VIEWS.items():
        problem = numbers()
        arrays, floats = judge.arrays(problem, poison=False)
        arrays |= {argument: view(judge.xp, arrays[argument]) for argument in ARGUMENTS}
        judged(problem, arrays, floats, f"with arrays that are {name}")
    with ThreadPoolExecutor(2) as threads:
        works = [threads.submit(second.call, others) for _ in range(4)]
        assert all(judge.bits(work.result()) == expected for work in works), "another thread got other bits"


@pytest.mark.promise(0, 12, 14)
def test_a_prepared_call_is_right_for_other_arrays_and_threads(judge: Judge, attention_kernel: Kernel) -> None:
    """Without options, with each feature that the kernel declares, and with several."""
    if attention_kernel.prepare is None:
        pytest.skip("the kernel has no prepare")
    declared = [name for name in FEATURES if name in attention_kernel.handles - HAVE_ARRAYS]
    several = [name for name in declared if judge.rng.random() < 0.3]
    tried = [[], *([name] for name in declared), *([several] if go_together(several) else [])]
    lse = {"lse"} & attention_kernel.handles
    with recorded(attention_kernel, attention_kernel.handles) as recording:
        for features in tried:
            for length, width in ((6, 8), (48, 64)):
                judge_prepared(judge, row_with({*features, *lse}, queries=length, head_dim=width))
    if not recording.prepared_runs:
        pytest.skip(f"{REFUSED_EVERY_CALL}: none was prepared")
