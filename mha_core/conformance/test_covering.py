"""Each kernel computes the problems of a covering design, in which every pair of values occurs that a problem may have.

The kernel is demanded by name, so its priority and ``opt_in`` do not matter. Each problem is held to several promises at once:
keys and values that no query may see hold NaN and inf, a second call must give the same bits, and neither arguments nor earlier
results may change.
"""

from __future__ import annotations

import numpy as np
import pytest

from ..dispatch.context import ALGEBRA
from ..dispatch.contract import ATTENTION_FEATURES, Kernel
from .backend import BackendUnderTest
from .cases.pieces import PIECES
from .judge.designed import judge_design, judge_piece_design
from .report.sections import REFUSED_EVERY_CALL

SECTION = "kernels"


pytestmark = pytest.mark.promise(0)


def test_a_kernel_on_problems_of_a_covering_design(
    backend: BackendUnderTest, attention_kernel: Kernel, dtype: str, rng: np.random.Generator
) -> None:
    judge = judge_design(backend, attention_kernel.name, attention_kernel.handles, dtype, rng)
    if judge.refused and not judge.computed:
        pytest.skip(f"{REFUSED_EVERY_CALL}: {'; '.join(sorted(judge.refused))}")
    assert judge.computed, "the time was up before the first problem was judged"


def test_the_algebra_on_problems_of_a_covering_design(backend: BackendUnderTest, dtype: str, rng: np.random.Generator) -> None:
    assert judge_design(backend, ALGEBRA, ATTENTION_FEATURES, dtype, rng).computed


def test_a_kernel_of_a_piece_on_calls_of_a_covering_design(
    backend: BackendUnderTest, piece_kernel: Kernel, dtype: str, rng: np.random.Generator
) -> None:
    computed, refused = judge_piece_design(backend, piece_kernel.op, piece_kernel.name, dtype, rng)
    if refused and not computed:
        pytest.skip(f"{REFUSED_EVERY_CALL}: {'; '.join(sorted(set(refused)))}")
    assert computed, "the time was up before the first call was judged"


@pytest.mark.parametrize("op", PIECES)
def test_the_algebra_of_a_piece_on_calls_of_a_covering_design(
    backend: BackendUnderTest, dtype: str, rng: np.random.Generator, op: str
) -> None:
    computed, _ = judge_piece_design(backend, op, ALGEBRA, dtype, rng)
    assert computed
