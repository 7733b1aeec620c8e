"""The vectors of the ONNX operators' own test cases, which nobody here wrote."""

import numpy as np
import pytest

import onnx_adapter

CASES = onnx_adapter.cases()


def to_torch(x):
    import torch

    if str(x.dtype) == "bfloat16":
        return torch.asarray(x.astype(np.float32)).to(torch.bfloat16)
    return torch.asarray(x.copy())


MAKE = {"numpy": np.asarray, "torch": to_torch}
HALF = {"float16": 2.0**-10, "bfloat16": 2.0**-7}  # eps


def runs_on(case, library):
    return library == "torch" or "bfloat16" not in {str(x.dtype) for x in case.inputs.values()}


@pytest.mark.parametrize(
    ("case", "library"),
    [pytest.param(case, library, id=f"{case.name}-{library}") for case in CASES for library in MAKE if runs_on(case, library)],
)
def test_node_case(case, library):
    results = onnx_adapter.compute(case, MAKE[library])
    # vectors in half precision carry ONNX's own error: allow 2 eps
    eps = max((HALF.get(str(x.dtype), 0) for x in case.inputs.values()), default=0)
    for expected, result in zip(case.outputs, results, strict=False):
        if expected is not None:
            got = onnx_adapter.float64(result)
            assert got.shape == expected.shape
            np.testing.assert_allclose(got, expected.astype(np.float64), rtol=2 * eps or 1e-5, atol=2 * eps or 2e-6)


def test_all_cases_are_there():
    """So that a newer onnx that moves its cases is noticed."""
    counts = {op: sum(case.op == op for case in CASES) for op in onnx_adapter.OPERATORS}
    least = {"Attention": 93, "RotaryEmbedding": 8, "LayerNormalization": 19, "RMSNormalization": 19, "Gelu": 4, "Softmax": 7}
    assert all(counts[op] >= least[op] for op in least), counts
