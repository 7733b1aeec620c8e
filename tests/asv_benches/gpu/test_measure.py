"""``make gpu-check`` without a GPU: its rehearsal on the host, its verdicts, and its page before anything is measured."""

import json
import sys

import numpy as np
import pytest
from project import ROOT
from tested_backends import BACKENDS

import mha_core as mha
from gpu import report
from gpu.__main__ import main
from gpu.cases import CASES, REHEARSAL, Case, Comparison, Goal
from gpu.measure import Row, measured, verdicts
from gpu.target import OURS, host

without_gpu = pytest.mark.skipif("cupy" in BACKENDS, reason="this machine has a CUDA device")


@pytest.fixture(scope="module")
def target():
    return host()


def test_each_set_of_inputs_has_its_own_answer(target):
    comparison = REHEARSAL[0].problem.comparison(target)
    assert len({comparison.contenders[OURS](at).tobytes() for at in range(comparison.sets)}) == comparison.sets


class Planted:
    """Contenders that are correct, wrong and broken."""

    unit = "FLOP"

    def comparison(self, target):
        exact = np.arange(4.0)

        def broken(at):
            raise RuntimeError("no such kernel")

        contenders = {
            "peer": lambda at: exact + 1e-3,
            "right": lambda at: exact - 1e-3,
            "wrong": lambda at: exact + 0.1,
            "broken": broken,
        }
        return Comparison(contenders, 2, lambda out: out, exact, 8.0)


def test_a_wrong_or_broken_contender_has_no_time_and_a_reason(target):
    rows = {row.contender: row for row in measured(Case("planted", Planted(), "peer", ()), target, rounds=2)}
    assert rows["right"].seconds and rows["peer"].seconds
    assert rows["wrong"].wrong == "its error relative to float64 is 0.1, the peer's 0.001" and not rows["wrong"].seconds
    assert rows["broken"].wrong == "RuntimeError: no such kernel"


def test_verdicts():
    goals = (Goal("a", 0.5, "b"), Goal("a", 0.6, "b"), Goal("a", 0.8), Goal("a", 0.9), Goal("c", 1.0, "b"))
    rows = [Row("x", "a", (1.0, 3.0, 1.1), 85.0, "B"), Row("x", "b", (2.0, 6.0, 2.0), 40.0, "B"), Row("x", "c", wrong="broken")]
    goals_judged = list(verdicts(Case("x", None, "b", goals), rows, {"B": 100.0}))
    assert [verdict["found"] for verdict in goals_judged] == [0.5, 0.5, 0.85, 0.85, None]
    assert [verdict["met"] for verdict in goals_judged] == [True, True, True, False, None]


def test_a_rehearsal_times_every_contender_writes_the_same_files_and_is_marked(tmp_path):
    main(output=tmp_path, rounds=2, rehearse=True)
    results = json.loads((tmp_path / "gpu.json").read_text())
    assert results["rehearsal"] and results["card"] == "host" and min(results["limits"].values()) > 0
    assert len(results["rows"]) == 9 and [row["wrong"] for row in results["rows"]] == [""] * 9
    assert all(len(row["seconds"]) == 2 and min(row["seconds"]) > 0 and row["rate"] > 0 for row in results["rows"])
    for case in REHEARSAL:
        timed = {row["contender"] for row in results["rows"] if row["case"] == case.name}
        assert {goal.contender for goal in case.goals} | {case.peer} <= timed
    text = (tmp_path / "gpu.md").read_text()
    assert "A rehearsal on the CPU" in text and report.NOT_MEASURED not in text
    assert text.count(" met |") + text.count(" missed |") == 4


def test_the_page_shows_what_was_measured_and_says_in_one_sentence_that_nothing_was():
    measured = ROOT / "docs" / "gpu.json"
    results = json.loads(measured.read_text()) if measured.exists() else None
    assert (ROOT / "docs" / "gpu.md").read_text(encoding="utf-8") == report.page(results)
    unmeasured = report.page(None)
    assert unmeasured.endswith("\n\nThese benchmarks have not been run on a GPU yet.\n")
    assert "|" not in unmeasured


def test_the_page_of_a_gpu_says_which_goals_are_met():
    goal = CASES[0].goals[0]
    rows = [
        Row(CASES[0].name, goal.contender, (1e-3, 1e-3), 5e14, "FLOP"),
        Row(CASES[0].name, goal.beside, (2e-3, 2e-3), 2.5e14, "FLOP"),
    ]
    best = {"FLOP": 7.9e14, "B": 4.1e12}
    head = {"rehearsal": False, "date": "2026-11-21", "card": "SomeCard", "versions": {"torch": "2.13.0"}}
    text = report.page(report.record(rows, verdicts(CASES[0], rows, best), best, head))
    assert "Measured on 2026-11-21 on one SomeCard; torch 2.13.0. Its limits in the same run: 790 TFLOP/s" in text
    assert f"| {CASES[0].name} | {goal.contender} | {goal.beside} | at most 1.02 of its time | 0.50, met |" in text
    assert f"| {CASES[0].name} | {goal.contender} | 1 ms | 500 TFLOP/s |" in text
    assert text.count(report.NOT_MEASURED) == sum(len(case.goals) for case in CASES) - 1


@without_gpu
def test_without_a_gpu_it_exits_with_1_and_an_error(capsys):
    with pytest.raises(Exception, match="1") as ended:  # typer's Exit, whose text is the exit status
        main()
    assert ended.value.exit_code == 1
    assert "error: backend 'cupy'" in capsys.readouterr().out.replace("\n", " ")


def test_torch_must_have_a_gpu_too(monkeypatch):
    from gpu import target

    monkeypatch.setattr(target, "load", lambda name: mha)
    torch = sys.modules.get("torch") or __import__("torch")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(RuntimeError, match="CuPy has a CUDA device, but torch has none"):
        target.gpu()
