"""ONNX's own test cases of its operators; ``mha conform`` runs them on any backend."""

from functools import partial

import pytest
from together import for_each

from mha_conformance.cases import onnx_vectors
from mha_conformance.find import find
from mha_conformance.test_vectors import judge

CASES = onnx_vectors.cases()


@pytest.mark.parametrize("name", ["numpy", "torch"])
def test_every_case_holds(name):
    """Torch has every dtype, so no case is left out there."""
    backend = find(name, None, None)
    cases = {case.name: case for case in CASES if case.dtypes <= set(backend.dtypes)}
    assert len(cases) == len(CASES) or name != "torch"
    for_each(cases, partial(judge, backend))


def test_all_cases_are_there():
    """A newer onnx might move its cases."""
    counts = {op: sum(case.op == op for case in CASES) for op in onnx_vectors.OPERATORS}
    norms = {"LayerNormalization": 19, "RMSNormalization": 19}
    least = {"Attention": 93, "FlexAttention": 11, "RotaryEmbedding": 8, "Gelu": 4, "Softmax": 7} | norms
    assert all(counts[op] >= least[op] for op in least), counts
