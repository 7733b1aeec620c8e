"""The gate's verdict on the instructions of two commits, what it says, and slowdowns on purpose."""

import pytest
from project_clone import ATTEND, only_cases

from mha_conformance.bench.instructions.count import Count
from tracking import gate
from tracking.gate import Cell, Verdict
from tracking.grown import Growth
from tracking.project import Refused, full

MAIN, TINY = "attention 1x2x256x64", "tiny call 1x1x8x8"


def cell(before, after, case=MAIN, backend="numpy", reason="", accepted=1.0):
    counts = (Count(n, 2 * n) if isinstance(n, int) else n for n in (before, after))
    return Cell(backend, case, *counts, reason, accepted)


WRONG, LACKING = Count(wrong="AssertionError: out is off"), Count(wrong="no gelu", skipped=True)


@pytest.mark.parametrize(
    ("one", "verdict"),
    [
        (cell(10_000, 10_199), Verdict.AS_FAST),
        (cell(10_000, 10_201), Verdict.SLOWER),
        (cell(10_000, 10_099, TINY), Verdict.AS_FAST),
        (cell(10_000, 10_101, TINY), Verdict.SLOWER),
        (cell(10_000, 5_000), Verdict.AS_FAST),
        (cell(10_000, 11_000, reason="it is right now", accepted=1.1), Verdict.AS_FAST),
        (cell(10_000, 11_001, reason="it is right now", accepted=1.1), Verdict.SLOWER),
        (cell(10_000, WRONG), Verdict.NOT_MEASURED),
        (cell(WRONG, 10_000), Verdict.NOT_MEASURED),
        (cell(LACKING, LACKING), Verdict.AS_FAST),
        (cell(LACKING, 10_000), Verdict.AS_FAST),
        (cell(10_000, LACKING), Verdict.NOT_MEASURED),
    ],
)
def test_a_cell_is_slower_beyond_the_limit_of_its_case(one, verdict):
    assert gate.verdict([one]) == verdict


def test_what_seems_slower_is_counted_again_and_the_smaller_count_stands(monkeypatch):
    counts = {"base": [100_000, 30_000, 9_000], "head": [100_000, 30_600, 9_500], "again": [999, 30_001, 9_499]}
    asked, cases = [], (MAIN, TINY, "dispatch of gelu")

    def counted(commit, backends, cases_asked):
        asked.append((commit, list(backends), list(cases_asked)))
        of = dict(zip(cases, counts["again" if len(asked) == 3 else commit], strict=True))
        return {name: {case: Count(of[case], 1) for case in cases_asked} for name in backends}

    monkeypatch.setattr(gate, "counted", counted)
    monkeypatch.setattr(gate, "accepted", lambda base: {})
    table = gate.compare("base", "head", ["numpy"], cases)
    assert asked[2:] == [("head", ["numpy"], [TINY, "dispatch of gelu"])]
    assert [cell.after.instructions for cell in table] == [100_000, 30_001, 9_499]
    assert [cell.slower for cell in table] == [False, False, True]
    counts["head"] = counts["base"]
    asked.clear()
    gate.compare("base", "head", ["numpy"], cases)
    assert len(asked) == 2
    assert cell(10_000, 11_000).fewer(WRONG).after.instructions == 11_000


def test_slower_comes_before_not_measured_and_nothing_is_not_measured():
    assert gate.verdict([cell(1, WRONG), cell(1, 2)]) == Verdict.SLOWER == 1
    assert gate.verdict([]) == Verdict.NOT_MEASURED == 3
    assert gate.verdict([cell(1, 1), cell(1, WRONG)]) == Verdict.NOT_MEASURED


def test_the_gate_names_what_changed_with_its_functions(capsys):
    table = [cell(10_000, 10_500), cell(10_000, WRONG, TINY), cell(10_000, 9_000, backend="torch"), cell(9, 9, TINY, "torch")]
    functions = {("numpy", MAIN): [Growth("libblas.so: sgemm", 100, 600, "instructions")]}
    gate.show(table, functions)
    printed = capsys.readouterr().out
    assert "slower: numpy, attention 1x2x256x64: +5.00%\n  +500 instructions in libblas.so: sgemm (100 to 600)" in printed
    assert "not measured: numpy, tiny call 1x1x8x8: AssertionError: out is off (after)" in printed
    assert "faster: torch, attention 1x2x256x64: -10.00%" in printed
    assert printed.splitlines()[-1] == "slower"


def test_markdown_has_a_table_for_each_backend_with_what_changed():
    table = [
        cell(10_000, 10_500),
        cell(10_000, 10_001, TINY),
        cell(10_000, 10_000, backend="torch"),
        cell(10_000, 20_000, TINY, "torch", reason="the answer is right now", accepted=2.5),
    ]
    functions = {("numpy", MAIN): [Growth("f", 1, 501, "instructions")]}
    text = gate.markdown("a" * 40, "b" * 40, table, functions)
    assert text.startswith("Instructions of a call at bbbbbbbb, against aaaaaaaa: **slower**.\n\n### numpy\n")
    assert "| attention 1x2x256x64 | 10,000 | 10,500 | +5.00% | +5.00% |" in text
    assert text.count("1 of 2 cases are within their tolerance.") == 2
    assert "  +500 instructions in f (1 to 501)" in text
    assert "slower on purpose: torch, tiny call 1x1x8x8: +100.00%, because the answer is right now" in text
    assert gate.markdown("a" * 40, "b" * 40, [], {}) == "No code changed between aaaaaaaa and bbbbbbbb.\n"


def test_a_slowdown_on_purpose_is_accepted_from_its_commit_on(small, tmp_path, monkeypatch):
    monkeypatch.setattr(gate, "git", lambda *words: small.git(*words))
    monkeypatch.setattr(gate, "full", lambda revision: full(revision, small.root))
    path = tmp_path / "accepted.toml"

    def accepted(base, entry):
        path.write_text(f"[[slower]]\n{entry}", encoding="utf-8")
        return gate.accepted(base, path)

    entry = 'after = "{after}"\nbackend = "numpy"\ncase = "{case}"\nto = 1.05\nreason = "it is right now"\n'
    for base, there in ((2, True), (3, True), (4, False)):
        found = accepted(small.hashes[base], entry.format(after=small.hashes[3], case=TINY))
        assert found == ({("numpy", TINY): ("it is right now", 1.05)} if there else {})
    with pytest.raises(Refused, match=r"accepted\.toml: no case is named 'a case'; the cases are: import"):
        accepted(small.hashes[2], entry.format(after=small.hashes[3], case="a case"))
    with pytest.raises(Refused, match=r"accepted\.toml: no commit is named '0000'"):
        accepted(small.hashes[2], entry.format(after="0000", case=TINY))
    with pytest.raises(Refused, match=r"accepted\.toml: .*line 2"):
        accepted(small.hashes[2], "after =\n")
    path.write_text('[[slower]]\nbackend = "numpy"\n', encoding="utf-8")
    with pytest.raises(Refused, match=r"an entry of accepted\.toml lacks after, case, reason, to"):
        gate.accepted(small.hashes[2], path)
    assert gate.accepted(small.hashes[2], tmp_path / "none.toml") == {}


def test_the_accepted_slowdowns_of_this_project_can_be_read():
    gate.accepted(gate.git("rev-parse", "HEAD"))


@pytest.mark.asv
@pytest.mark.rotating
def test_one_more_call_in_dispatch_is_slower_and_a_comment_is_not(clone, tmp_path):
    only_cases(clone, "dispatch of attention")
    base = clone.git("rev-parse", "HEAD")
    clone.change(ATTEND[0], ATTEND[1], "    # a comment\n" + ATTEND[1], "a comment")
    done = clone.run("gate", base, "--backend", "numpy", status=Verdict.AS_FAST)
    assert done.stdout.splitlines()[-1] == "as fast"
    clone.change(ATTEND[0], ATTEND[1], "    _more()\n" + ATTEND[1], "a call")
    clone.append(ATTEND[0], "\n\ndef _more():\n    return None\n")
    clone.commit("and what it calls")
    report = tmp_path / "report.md"
    done = clone.run("gate", base, "--backend", "numpy", "--markdown", report, status=Verdict.SLOWER)
    assert "slower: numpy, dispatch of attention: +" in done.stdout
    assert "bytecode instructions in mha_core.ops.attention._more (0 to " in done.stdout
    assert "**slower**" in report.read_text(encoding="utf-8")


@pytest.mark.asv
@pytest.mark.rotating
def test_without_a_base_the_newest_counted_commit_is_compared_with(clone, tmp_path):
    only_cases(clone, "dispatch of gelu")
    done = clone.run("gate", "--backend", "numpy", status=1)
    assert "no commit was counted on numpy" in done.stderr
    clone.run("history", "--commit", "--backend", "numpy", status=0)
    (clone.root / "NOTES").write_text("a document\n", encoding="utf-8")
    clone.commit("a document")
    report = tmp_path / "report.md"
    done = clone.run("gate", "--backend", "numpy", "--markdown", report, status=Verdict.AS_FAST)
    assert "no code changed between" in done.stderr and "No code changed" in report.read_text(encoding="utf-8")


@pytest.mark.asv
@pytest.mark.rotating
def test_a_commit_that_answers_wrongly_was_not_measured(clone):
    only_cases(clone, TINY)
    base = clone.git("rev-parse", "HEAD")
    clone.change(*ATTEND, ATTEND[1] + " * 2", "broken")
    done = clone.run("gate", base, "--backend", "numpy", status=Verdict.NOT_MEASURED)
    assert "not measured: numpy, tiny call 1x1x8x8: AssertionError" in done.stdout
