"""The language model of the benchmark: both sides write the same tokens, others are judged wrong, and its limits."""

import needs
import numpy as np
import pytest

from mha_conformance.bench.limits import COPY, MATRIX
from mha_conformance.bench.texts import MODEL
from peers import language, written
from peers.language import Writing

pytestmark = [pytest.mark.asv, needs.installed("torch", "transformers", MODEL)]


@pytest.mark.parametrize(("dtype", "said"), [("float32", "Mismatched elements"), ("bfloat16", "tokens are unlikely")])
def test_tokens_are_judged_right_on_each_library_and_others_are_not(monkeypatch, tmp_path, dtype, said):
    monkeypatch.setattr(written, "BUILD", tmp_path)
    problem = Writing(new=9, dtype=dtype).small()
    check, peer = problem.judge(), language.generated(problem)
    for each in (problem.ours("numpy"), problem.ours("torch"), peer):
        assert len(each.answer()) == 4
        check(each.answer())
    with pytest.raises(AssertionError, match=said):
        check(np.roll(peer.answer(), 1))


def test_the_limits_count_the_weights_and_the_pairs():
    weights = 8 * (1024 * 128 * (2 * 16 + 2 * 8) + 3 * 1024 * 3072)
    read, wrote = Writing().limit, Writing(new=65).limit
    assert (read.kind, wrote.kind) == (MATRIX, COPY)
    head = 151_936 * 1024
    assert wrote.amount == 64 * 4 * (weights + head)
    pairs = 8 * 2 * 16 * 128 * (512 * 513 // 2)
    assert Writing(new=65, dtype="bfloat16").limit.amount == wrote.amount / 2
    assert read.amount == 2 * (512 * weights + pairs + head)
