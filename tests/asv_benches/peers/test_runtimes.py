"""ONNX Runtime and OpenVINO as peers of the text encoder: their vectors are judged as ours are, int8 ones by a wider bound."""

import sys

import needs
import pytest

from mha_conformance.bench.texts import MODEL, Texts
from peers import runtimes, written
from peers.cases import CASES

pytestmark = [pytest.mark.asv, needs.installed("torch", "transformers", "onnxruntime", "openvino", "nncf", MODEL)]
PROBLEM = Texts(every=24)


@pytest.fixture(scope="module")
def build(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(written, "BUILD", folder := tmp_path_factory.mktemp("build"))
        patch.setattr(runtimes, "BUILD", folder)
        yield folder


@pytest.mark.parametrize("name", ["ONNX Runtime", "ONNX Runtime, int8", "OpenVINO", "OpenVINO, int8"])
def test_vectors_are_judged_right_and_those_of_other_texts_are_not(build, name):
    (peer,) = {id(case.peer): case.peer for case in CASES if case.peer.name == name}.values()
    exact = name in ("ONNX Runtime", "OpenVINO")
    assert (peer.judged_as is None) is exact, "only int8 has a bound of its own"
    check = (PROBLEM if exact else Texts(every=24, bound=peer.judged_as.bound)).judge()
    work = peer.build(PROBLEM)
    cosine = check(work.answer())
    assert cosine > 0.999999 if exact else 0.95 < cosine < 0.9999
    with pytest.raises(AssertionError, match="times the bound"):
        check(work.answer()[::-1])
    assert "openvino_telemetry.main" not in sys.modules, "OpenVINO sends over the network what it is used for"
