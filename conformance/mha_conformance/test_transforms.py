"""Kernels under the transforms that they declare, and the algebra under all of them: gradients, forward gradients, vmap.

The plugin says how its library's transforms are applied (``Backend.transforms``). Problems are small ones of the covering
design, with every option; each differentiates another subset of the arrays.
"""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from mha_core.plugin import Kernel
from mha_core.shared import ALGEBRA, FEATURES

from .cases.layer_axes import LAYERS
from .cases.piece_gradients import DIFFERENTIABLE
from .judge.held import Judge
from .judge.transforms import judge_transform

SECTION = "gradients"
pytestmark = pytest.mark.promise(0)
QUICK = ("attention", "layer_norm", "encoder_layer")
WITHOUT_GRADIENTS = frozenset({"int8"})
"""Features that have no gradients; torch.func.vmap does not say whether gradients are recorded outside of it."""
TRANSFORMS = pytest.mark.parametrize("transform", ["gradient", "forward_gradient", "vmap"])


def judge_under(judge: Judge, transform: str, op: str, kernel: str, features: Iterable[str]) -> None:
    """Judge the kernel; skip the test if the backend lacks the transform, or if the kernel refuses every problem."""
    known = judge.loaded.record.transforms or {}
    if transform not in known:
        pytest.skip(f"the plugin does not say how {transform} is applied")
    judge_transform(judge, transform, known[transform], op, kernel, frozenset(features) - WITHOUT_GRADIENTS).assert_computed()


def judge_kernel(judge: Judge, transform: str, kernel: Kernel) -> None:
    if transform not in kernel.handles:
        pytest.skip(f"the kernel does not declare {transform}")
    judge_under(judge, transform, kernel.op, kernel.name, kernel.handles)


@TRANSFORMS
def test_a_kernel_of_attention(judge: Judge, attention_kernel: Kernel, transform: str) -> None:
    judge_kernel(judge, transform, attention_kernel)


@TRANSFORMS
def test_a_kernel_of_a_piece(judge: Judge, piece_kernel: Kernel, transform: str) -> None:
    judge_kernel(judge, transform, piece_kernel)


@TRANSFORMS
def test_a_kernel_of_a_layer(judge: Judge, layer_kernel: Kernel, transform: str) -> None:
    judge_kernel(judge, transform, layer_kernel)


@TRANSFORMS
@pytest.mark.parametrize("op", ["attention", *DIFFERENTIABLE[:-1], *LAYERS])
def test_the_algebra(wide: Judge, transform: str, op: str) -> None:
    if wide.quick and op not in QUICK:
        pytest.skip(f"quick runs judge only {', '.join(QUICK)}")
    judge_under(wide, transform, op, ALGEBRA, FEATURES[op])
