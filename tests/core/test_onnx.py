"""ONNX's own test cases of its operators, one test for each; ``mha conform`` runs them on any backend."""

import pytest

from mha_conformance.cases import onnx_vectors
from mha_conformance.find import find
from mha_conformance.test_vectors import judge

CASES = onnx_vectors.cases()
BACKENDS = {name: find(name, None, None) for name in ("numpy", "torch")}


@pytest.mark.parametrize(
    ("case", "library"),
    [
        pytest.param(case, library, id=f"{case.name}-{library}")
        for case in CASES
        for library, backend in BACKENDS.items()
        if case.dtypes <= set(backend.dtypes)
    ],
)
def test_node_case(case, library):
    judge(BACKENDS[library], case)


def test_all_cases_are_there():
    """A newer onnx might move its cases. Torch has every dtype, so no case is left out there."""
    counts = {op: sum(case.op == op for case in CASES) for op in onnx_vectors.OPERATORS}
    least = {"Attention": 93, "RotaryEmbedding": 8, "LayerNormalization": 19, "RMSNormalization": 19, "Gelu": 4, "Softmax": 7}
    assert all(counts[op] >= least[op] for op in least), counts
    assert all(case.dtypes <= set(BACKENDS["torch"].dtypes) for case in CASES)
