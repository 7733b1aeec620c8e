"""Promise 13: attention and its gradients take memory that grows with L + S, not with L S, by each kernel and the algebra.

Memory is measured in a new process, for L = S = 8192 and one head, whose scores alone would take 256 MB in float32. A process
that grows by less than a quarter of that has made neither the scores nor a full mask or bias. Blocks take 10 to 25 MB. Memory
that the allocator keeps from an earlier case can hide at most this quarter, and the allocator is set to return large blocks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from .backend import BackendUnderTest
from .probes import gradient_memory
from .probes.attention_memory import CASES, limit
from .probes.python_process import run_python

pytestmark = pytest.mark.promise(13)
QUICK = ("plain", "array_mask")
Measured = Mapping[str, Mapping[str, Any]]
"""Results of a probe: for each kernel and case, in the first dtype that is judged."""


@pytest.fixture(scope="module")
def measured(backend: BackendUnderTest) -> Measured:
    return measured_by(backend, "attention", QUICK if backend.quick else ())


def measured_by(backend: BackendUnderTest, operation: str, cases: Sequence[str]) -> Measured:
    """Measure these cases in a new process, or all if none is named."""
    if isinstance(backend.on_host, str):
        pytest.skip(f"where its memory is, is not known: {backend.on_host}")
    if not backend.on_host:
        pytest.skip("its arrays are on a device, whose memory cannot be measured portably")
    try:
        import resource  # noqa: F401
    except ImportError:
        pytest.skip("this system does not report the peak memory of a process")
    words = [operation, backend.name, backend.dtypes[0], *([] if backend.device is None else [str(backend.device)])]
    words += [word for name in backend.plugins for word in ("--plugin", name)]
    words += [word for case in cases for word in ("--case", case)]
    # glibc keeps freed memory for later calls, unless this variable makes it return large blocks; other C libraries ignore it
    program = "mha_conformance.probes.each_kernel"
    by_kernel: Measured = run_python("-m", program, *words, MALLOC_MMAP_THRESHOLD_="1048576")
    return by_kernel


@pytest.mark.parametrize("case", CASES)
def test_memory_grows_with_the_length_not_its_square(backend: BackendUnderTest, measured: Measured, case: str) -> None:
    if backend.quick and case not in QUICK:
        pytest.skip(f"quick runs measure only {' and '.join(QUICK)}")
    assert_linear(measured, case)


@pytest.mark.parametrize("case", gradient_memory.CASES)
def test_memory_of_gradients_grows_with_the_length_not_its_square(backend: BackendUnderTest, case: str) -> None:
    if backend.quick:
        pytest.skip("quick runs do not measure gradients, which take seconds for each case")
    assert_linear(measured_by(backend, "attention_vjp", (case,)), case)


def assert_linear(measured: Measured, case: str) -> None:
    for kernel, cases in measured.items():
        if cases[case] is not None:
            growth, wrong = cases[case]["bytes"], cases[case]["wrong"]
            assert growth <= limit(), (
                f"the process grew by {growth >> 20} MB, expected at most {limit() >> 20} MB: "
                f"{kernel} makes an array as large as the scores"
            )
            assert not wrong, f"{kernel}: {wrong}"
