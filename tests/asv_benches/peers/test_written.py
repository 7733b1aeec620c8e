"""The models that the benchmark against other libraries writes, and the judgement of their vectors."""

import needs
import pytest

from mha_conformance.bench import plain_numpy
from mha_conformance.bench.texts import MODEL, Texts
from peers import texts, written
from peers.written import ModernBert, once

pytestmark = pytest.mark.asv


@needs.installed("torch", "sentence_transformers", MODEL)
def test_modernbert_is_judged_right_on_each_library_and_vectors_of_other_texts_are_not(monkeypatch, tmp_path):
    monkeypatch.setattr(written, "BUILD", tmp_path)
    problem = ModernBert(first=8, layers=3)
    check, work = problem.judge(), texts.encoded(problem)
    for each in (problem.ours("numpy"), problem.ours("torch"), work):
        check(each.answer())
    with pytest.raises(AssertionError, match="times the bound"):
        check(work.answer()[::-1])


@needs.installed("torch", "transformers", MODEL)
def test_the_limit_of_modernbert_counts_the_products_of_its_tokens(monkeypatch, tmp_path):
    monkeypatch.setattr(written, "BUILD", tmp_path)
    tokenizer, sentences = plain_numpy.TextEncoder(Texts().folder), ModernBert().texts()
    lengths = [len(tokenizer.ids(text)) for text in sentences]
    assert len(lengths) == 64
    assert max(lengths) <= 65  # the window of 64 tokens to each side shows all pairs
    layers, width, inner = 1, 768, 1152
    weights = layers * (4 * width**2 + 3 * width * inner)
    products = weights * sum(lengths) + 2 * layers * width * sum(length**2 for length in lengths)
    assert ModernBert(layers=layers).limit.amount == 2 * products


def test_a_model_is_written_once_and_only_if_it_is_complete(tmp_path):
    def fail(folder):
        (folder / "half").touch()
        raise OSError("disk full")

    def another_is_first(folder):
        (folder / "file").write_text("mine", encoding="utf-8")
        once(target, lambda folder: (folder / "file").write_text("theirs", encoding="utf-8"))

    target = tmp_path / "build" / "model"
    with pytest.raises(OSError, match="disk full"):
        once(target, fail)
    assert list(target.parent.iterdir()) == []
    assert once(target, another_is_first) == once(target, fail) == target
    assert list(target.parent.iterdir()) == [target]
    assert (target / "file").read_text(encoding="utf-8") == "theirs"
