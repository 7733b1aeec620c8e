"""The problems that backends are timed on: each is judged against float64, on backends and in plain NumPy alike."""

import os
import shutil
import statistics
import subprocess
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from mha_conformance.bench import attention, plain_numpy
from mha_conformance.bench import imports as importing
from mha_conformance.bench.attention import Attention, Packed
from mha_conformance.bench.cases import ALL_CORES, CASES, LONG, chosen
from mha_conformance.bench.gradients import AttentionStep
from mha_conformance.bench.imports import Import
from mha_conformance.bench.layer import Layer, MultiHead
from mha_conformance.bench.limits import COPY, MATRIX
from mha_conformance.bench.texts import Texts
from mha_conformance.bench.timing import on, timed
from mha_text.models import packing

PROBLEMS = {
    "plain": (Attention(2, 3, 20, 8), {"stretch": 1.1}),
    "causal": (Attention(1, 2, 33, 8, causal=True), {"causal": False}),
    "window": (Attention(1, 2, 64, 8, window=5), {"window": 6}),
    "wide": (Attention(1, 2, 40, 8, stretch=40.0), {"stretch": 40.1}),
    "grouped": (Attention(1, 6, 17, 8, kv_heads=2, causal=True), {"causal": False}),
    "decode": (Attention(1, 2, 1, 8, keys=50), {"stretch": 1.1}),
    "packed": (Packed((5, 1, 17), 2, 8), {"lengths": (5, 2, 16)}),
    "multi-head": (MultiHead(2, 9, 24, 3), {"num_heads": 2}),
    "layer": (Layer(2, 5), {}),
    "gradients": (AttentionStep(2, 3, 20, 8), {"stretch": 1.1}),
    "causal gradients": (AttentionStep(1, 2, 33, 8, causal=True), {"causal": False}),
}
"""Small problems, and what changes each into a similar one with another answer; the answer of a layer is moved a little."""
SMALL = {name: problem for name, (problem, _) in PROBLEMS.items()}


@pytest.mark.parametrize(("problem", "changes"), PROBLEMS.values(), ids=PROBLEMS)
def test_an_answer_is_judged_right_wherever_it_is_computed_and_that_of_another_problem_wrong(problem, changes):
    check = problem.judge()
    for work in (problem.ours("numpy"), problem.ours("torch"), problem.plain()):
        check(work.answer())
    other = replace(problem, **changes).ours("numpy").answer() if changes else work.answer() * np.float32(1.0001)
    with pytest.raises(AssertionError, match="times the bound"):
        check(other)


def test_a_long_problem_is_judged_at_chosen_rows_of_each_head(monkeypatch):
    monkeypatch.setattr(attention, "CHECKED", 200)
    problem = Attention(1, 2, 40, 8)
    check, out = problem.judge(), problem.plain().call()
    check(out)
    for row in (0, 39):
        spoilt = out.copy()
        spoilt[0, 1, row, 3] += 0.01
        with pytest.raises(AssertionError, match="out"):
            check(spoilt)
    with pytest.raises(AssertionError, match="shape"):
        check(out[..., :-1, :])


def test_the_limit_counts_the_pairs_that_are_seen():
    for problem in (SMALL["plain"], SMALL["causal"], SMALL["window"], SMALL["grouped"]):
        pairs = problem.seen(np.arange(problem.queries)).sum()
        assert problem.limit.kind == MATRIX
        assert problem.limit.amount == 4 * problem.batch * problem.heads * pairs * problem.head_dim
    assert SMALL["packed"].limit.amount == 4 * 2 * 8 * (5**2 + 1 + 17**2)
    assert SMALL["multi-head"].limit.amount == 2 * 18 * (4 * 24 * 24 + 2 * 9 * 24)
    assert (SMALL["decode"].limit.kind, SMALL["decode"].limit.amount) == (COPY, 4 * 2 * 2 * 50 * 8)
    grouped_decode = replace(SMALL["decode"], heads=4, kv_heads=2)
    assert grouped_decode.limit == SMALL["decode"].limit  # the same keys and values are read


def test_an_error_in_any_row_is_found():
    problem = Attention(1, 2, 2048, 8)
    check, out = problem.judge(), problem.plain().call()
    for row in range(0, 2048, 97):
        for wrong in (np.nan, 0.5):
            spoilt = out.copy()
            spoilt[0, 1, row, 3] += wrong
            with pytest.raises(AssertionError, match="out"):
                check(spoilt)


def test_asynchronous_answers_are_waited_for():
    """If a backend has no ``synchronize``, each answer is read."""
    read = []
    slow = SimpleNamespace(record=SimpleNamespace(synchronize=None), to_numpy=lambda answer: read.append(answer) or answer)
    timed(on(slow, lambda: "an answer"), 3)
    assert read == ["an answer"] * 3
    waited = []
    known = SimpleNamespace(record=SimpleNamespace(synchronize=lambda: waited.append(1)), to_numpy=read.append)
    timed(on(known, lambda: "another"), 3)
    assert (len(read), len(waited)) == (3, 1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            ("1_Pooling/config.json", '"pooling_mode_cls_token": false', '"pooling_mode_cls_token": true'),
            "has pooling_mode_cls",
        ),
        (("modules.json", "models.Normalize", "models.Dense"), "has the modules Transformer, Pooling, Dense; expected"),
    ],
)
def test_a_model_that_plain_numpy_does_not_support_is_refused(minilm, tmp_path, change, message):
    file, old, new = change
    folder = shutil.copytree(minilm, tmp_path / "model", copy_function=os.symlink)
    text = (folder / file).read_text(encoding="utf-8")
    assert old in text
    (folder / file).unlink()
    (folder / file).write_text(text.replace(old, new), encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        Texts(model=folder).check()


def test_plain_gelu_is_as_accurate_as_its_source_says():
    x = np.linspace(-8, 8, 4001)
    exact = x * (1 + np.asarray([plain_numpy.math.erf(value / 2**0.5) for value in x])) / 2
    assert np.abs(plain_numpy.gelu(x) - exact).max() < 1.5e-7 * 8
    assert np.abs(plain_numpy.exact_gelu(x) - exact).max() < 4e-9 * 8


def test_the_texts_are_of_mixed_length_and_none_is_cut(minilm):
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(minilm / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    lengths = [len(tokenizer.encode(text).ids) for text in Texts().texts()]
    assert len(lengths) == 256
    assert 15 <= statistics.median(lengths) <= 22
    assert 230 <= max(lengths) <= 256
    assert 7000 <= sum(lengths) <= 9000


def test_the_vectors_of_texts_are_judged(monkeypatch):
    monkeypatch.setattr(Texts, "texts", lambda self: ["a text", "Swifts sleep on the wing.", ""])
    check = Texts().judge()
    out = Texts().ours("numpy").answer()
    check(out)
    check(Texts().plain().answer())
    with pytest.raises(AssertionError, match="times the bound"):
        check(out[::-1])


def test_copies_of_texts_are_judged_each():
    problem = Texts(every=100, copies=3)
    assert problem.texts() == 3 * Texts(every=100).texts()
    check = problem.judge()
    out = problem.ours("numpy").answer()
    check(out)
    with pytest.raises(AssertionError, match="shape"):
        check(out[:-1])
    out[-1] = out[0]
    with pytest.raises(AssertionError, match="times the bound"):
        check(out)


def test_the_texts_for_all_cores_fill_more_than_a_window_and_their_small_problem_more_than_a_batch(minilm):
    (problem,) = ALL_CORES.values()
    assert len(problem.texts()) >= max(5000, packing.WINDOW + 1)
    encoder = plain_numpy.TextEncoder(minilm)
    assert sum(len(encoder.ids(text)) for text in problem.small().texts()) > packing.TOKENS


def test_some_of_the_texts_or_the_lines_of_a_file_can_be_used(tmp_path):
    whole = Texts().texts()
    assert Texts(every=4).texts() == whole[::4]
    file = tmp_path / "mine.txt"
    file.write_text("one text\nanother\n", encoding="utf-8")
    assert Texts(file=file).texts() == ["one text", "another"]


def test_the_limit_of_texts_counts_the_products_of_their_tokens(minilm, monkeypatch):
    monkeypatch.setattr(Texts, "texts", lambda self: ["a text"])
    tokens, layers, width, inner = 4, 6, 384, 1536
    weights = layers * (4 * width**2 + 2 * width * inner)
    assert Texts().limit.amount == 2 * (weights * tokens + 2 * layers * width * tokens**2)


def test_an_import_that_fails_raises():
    Import().ours("numpy").call()
    Import(first_use=True).ours("numpy").call()
    with pytest.raises(subprocess.CalledProcessError):
        importing._running("import no_such_module").call()


def test_cases_are_chosen_by_a_part_of_their_names():
    assert set(chosen(["DECODE", "tiny"])) == {"decode 1x8x1x64, 8192 keys", "tiny call 1x1x8x8"}
    assert chosen([]) == CASES
    with pytest.raises(ValueError, match=r"^no case has 'nothing' in its name; the cases are: attention 32x12x128x32; "):
        chosen(["tiny", "nothing"])
    assert len(CASES | LONG | ALL_CORES) == len(CASES) + len(LONG) + len(ALL_CORES)
