"""Kernels under the transforms that they declare, and the algebra under all of them: gradients, forward gradients, vmap.

The plugin says how its library's transforms are applied (``Backend.transforms``). Problems are small ones of the covering
design, with every option; each differentiates another subset of the arrays.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pytest

from mha_core.plugin import Kernel
from mha_core.shared import ALGEBRA, FEATURES

from .backend import BackendUnderTest
from .cases.layer_axes import LAYERS
from .cases.pieces import PIECES
from .judge.transforms import judge_transform

SECTION = "gradients"
pytestmark = pytest.mark.promise(0)
QUICK = ("attention", "layer_norm", "encoder_layer")
TRANSFORMS = pytest.mark.parametrize("transform", ["gradient", "forward_gradient", "vmap"])


def judge(
    backend: BackendUnderTest,
    transform: str,
    op: str,
    kernel: str,
    features: Iterable[str],
    dtype: str,
    rng: np.random.Generator,
) -> None:
    """Judge the kernel; skip the test if the backend lacks the transform, or if the kernel refuses every problem."""
    known = backend.loaded.record.transforms or {}
    if transform not in known:
        pytest.skip(f"the plugin does not say how {transform} is applied")
    judge_transform(backend, transform, known[transform], op, kernel, features, dtype, rng).assert_computed()


def judge_kernel(backend: BackendUnderTest, transform: str, kernel: Kernel, dtype: str, rng: np.random.Generator) -> None:
    if transform not in kernel.handles:
        pytest.skip(f"the kernel does not declare {transform}")
    judge(backend, transform, kernel.op, kernel.name, kernel.handles, dtype, rng)


@TRANSFORMS
def test_a_kernel_of_attention(
    backend: BackendUnderTest, attention_kernel: Kernel, dtype: str, rng: np.random.Generator, transform: str
) -> None:
    judge_kernel(backend, transform, attention_kernel, dtype, rng)


@TRANSFORMS
def test_a_kernel_of_a_piece(
    backend: BackendUnderTest, piece_kernel: Kernel, dtype: str, rng: np.random.Generator, transform: str
) -> None:
    judge_kernel(backend, transform, piece_kernel, dtype, rng)


@TRANSFORMS
def test_a_kernel_of_a_layer(
    backend: BackendUnderTest, layer_kernel: Kernel, dtype: str, rng: np.random.Generator, transform: str
) -> None:
    judge_kernel(backend, transform, layer_kernel, dtype, rng)


@TRANSFORMS
@pytest.mark.parametrize("op", ["attention", *PIECES, *LAYERS])
def test_the_algebra(backend: BackendUnderTest, wide_dtype: str, rng: np.random.Generator, transform: str, op: str) -> None:
    if backend.quick and op not in QUICK:
        pytest.skip(f"quick runs judge only {', '.join(QUICK)}")
    judge(backend, transform, op, ALGEBRA, FEATURES[op], wide_dtype, rng)
