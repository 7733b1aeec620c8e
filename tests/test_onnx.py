"""The vectors of the ONNX operators' own test cases, one test for each; ``mha conform`` runs them on any backend."""

import pytest

from mha_core.conformance import vectors
from mha_core.conformance.subject import find
from mha_core.conformance.test_vectors import judge

CASES = vectors.cases()
SUBJECTS = {name: find(name, None, None) for name in ("numpy", "torch")}


@pytest.mark.parametrize(
    ("case", "library"),
    [
        pytest.param(case, library, id=f"{case.name}-{library}")
        for case in CASES
        for library, subject in SUBJECTS.items()
        if case.dtypes <= set(subject.dtypes)
    ],
)
def test_node_case(case, library):
    judge(SUBJECTS[library], case)


def test_all_cases_are_there():
    """So that a newer onnx that moves its cases is noticed; on torch, which has every dtype, none is left out."""
    counts = {op: sum(case.op == op for case in CASES) for op in vectors.OPERATORS}
    least = {"Attention": 93, "RotaryEmbedding": 8, "LayerNormalization": 19, "RMSNormalization": 19, "Gelu": 4, "Softmax": 7}
    assert all(counts[op] >= least[op] for op in least), counts
    assert all(case.dtypes <= set(SUBJECTS["torch"].dtypes) for case in CASES)
