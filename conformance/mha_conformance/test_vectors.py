"""The 161 test cases of the ONNX operators, from the package ``onnx`` if it is installed."""

from __future__ import annotations

import numpy as np
import pytest

from .backend import BackendUnderTest
from .cases import onnx_vectors

pytestmark = pytest.mark.promise(0)


def judge(backend: BackendUnderTest, case: onnx_vectors.Case) -> None:
    """Raise AssertionError if an output that we compute differs from ONNX's."""
    eps = case.tolerance()
    for at, (expected, result) in enumerate(zip(case.outputs, onnx_vectors.compute(backend, case), strict=False)):
        if expected is not None:
            got = (result if isinstance(result, np.ndarray) else backend.numpy(result)).astype(np.float64)
            assert got.shape == expected.shape, f"{case.name}: output {at} has shape {got.shape}; expected {expected.shape}"
            np.testing.assert_allclose(
                got, expected.astype(np.float64), rtol=eps or 1e-5, atol=eps or 2e-6, err_msg=f"{case.name}: output {at}"
            )


@pytest.mark.parametrize("op", onnx_vectors.OPERATORS)
def test_the_cases_of_an_onnx_operator(backend: BackendUnderTest, op: str) -> None:
    pytest.importorskip("onnx", reason="the package onnx, which contains these test cases, is not installed")
    cases = [case for case in onnx_vectors.cases() if case.op == op and case.dtypes <= set(backend.dtypes)]
    if not cases:
        pytest.skip("all cases of this operator are in dtypes that are not judged")
    for case in cases[:: max(1, len(cases) // backend.count(30))] if backend.quick else cases:
        judge(backend, case)
