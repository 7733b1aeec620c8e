"""Test cases that nobody here wrote: the 150 of the ONNX operators, from the package ``onnx`` where it is installed."""

from __future__ import annotations

import numpy as np
import pytest

from . import vectors
from .subject import Subject

pytestmark = pytest.mark.promise(0)


def judge(subject: Subject, case: vectors.Case) -> None:
    """Raise AssertionError where an output that we have is not ONNX's."""
    eps = case.tolerance()
    for at, (expected, result) in enumerate(zip(case.outputs, vectors.compute(subject, case), strict=False)):
        if expected is not None:
            got = (result if isinstance(result, np.ndarray) else subject.numpy(result)).astype(np.float64)
            assert got.shape == expected.shape, f"{case.name}: output {at} has shape {got.shape}; expected {expected.shape}"
            np.testing.assert_allclose(
                got, expected.astype(np.float64), rtol=eps or 1e-5, atol=eps or 2e-6, err_msg=f"{case.name}: output {at}"
            )


@pytest.mark.parametrize("op", vectors.OPERATORS)
def test_the_cases_of_an_onnx_operator(subject: Subject, op: str) -> None:
    pytest.importorskip("onnx", reason="the package onnx is not installed, whose test cases these are")
    cases = [case for case in vectors.cases() if case.op == op and case.dtypes <= set(subject.dtypes)]
    if not cases:
        pytest.skip("all cases of this operator are in dtypes that are not judged")
    for case in cases[:: max(1, len(cases) // subject.count(30))] if subject.quick else cases:
        judge(subject, case)
