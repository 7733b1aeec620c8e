"""Each kernel computes the problems of a covering design, in which every pair of values occurs that a problem may have.

The kernel is demanded by name, so its priority and ``opt_in`` do not matter. Each problem is held to several promises at once:
keys and values that no query may see hold NaN and inf, a second call must give the same bits, also after calls with other
shapes and in another thread, and neither arguments nor earlier results may change. Some problems are put into arrays that the
kernel has computed other numbers from.
"""

from __future__ import annotations

import pytest

from mha_core.plugin import Kernel
from mha_core.shared import ALGEBRA, FEATURES

from .cases.layer_axes import LAYERS
from .cases.pieces import PIECES
from .judge.designed import judge_design
from .judge.held import Judge

SECTION = "kernels"
pytestmark = pytest.mark.promise(0)


def test_a_kernel_on_problems_of_a_covering_design(judge: Judge, attention_kernel: Kernel) -> None:
    judge_design(judge, "attention", attention_kernel.name, attention_kernel.handles).assert_computed()


def test_a_kernel_of_a_piece_on_calls_of_a_covering_design(judge: Judge, piece_kernel: Kernel) -> None:
    judge_design(judge, piece_kernel.op, piece_kernel.name, piece_kernel.handles).assert_computed()


def test_a_kernel_of_a_layer_on_calls_of_a_covering_design(judge: Judge, layer_kernel: Kernel) -> None:
    judge_design(judge, layer_kernel.op, layer_kernel.name, layer_kernel.handles).assert_computed()


@pytest.mark.parametrize("op", ["attention", *PIECES, *LAYERS])
def test_the_algebra_on_problems_of_a_covering_design(judge: Judge, op: str) -> None:
    judge_design(judge, op, ALGEBRA, FEATURES[op]).assert_computed()
