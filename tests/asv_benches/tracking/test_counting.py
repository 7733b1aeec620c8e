"""Instructions of commits: which commits are counted, in what order, and what is kept."""

import json
from pathlib import Path

import pytest
from project import BENCHES, ROOT
from project_clone import Clone, only_cases

from mha_conformance.history import results
from tracking import counting
from tracking.project import changed_code, next_missing

GAPLESS = 50
"""Number of commits up to the newest counted one that are all counted."""
AHEAD = 15
"""Greatest number of commits that changed code since the newest counted one."""


@pytest.mark.asv
@pytest.mark.rotating
def test_history_counts_the_last_commit_first_and_keeps_what_asv_and_the_report_read(clone):
    """A commit that changes only a document is not counted."""
    only_cases(clone, "dispatch of gelu")
    first = clone.git("rev-parse", "HEAD~1")
    (clone.root / "NOTES").write_text("a document\n", encoding="utf-8")
    clone.commit("a document")
    last = clone.change("mha_core/__init__.py", "0.1.0", "0.1.1", "code")
    done = clone.run("history", "--commit", "--backend", "numpy", status=0)
    said = [line for line in done.stderr.splitlines() if ": counted" in line or "without counts" in line]
    assert [line.split(":")[0] for line in said] == [last[:8], first[:8], "commits without counts"]
    assert said[-1] == "commits without counts: none of 2"
    assert clone.git("log", "--format=%s", "-1") == "Instructions of commits that had no counts"
    assert clone.git("status", "--porcelain") == ""
    (machine,) = results.read([clone.root / "asv_benches"]).machines
    assert machine.name == counting.MACHINE and [commit.hash for commit in machine.commits] == [first, last]
    counts = {each.benchmark.title: each.values for each in machine.series}
    assert set(counts) == {"instructions", "estimated cycles"}
    before, after = counts["instructions"]
    assert 5_000 < before < 50_000 and after == pytest.approx(before, rel=0.003)
    assert "valgrind" in machine.versions and "numpy" in machine.versions
    kept = "".join(path.read_text(encoding="utf-8") for path in (clone.root / "asv_benches" / "results").rglob("*.json"))
    assert str(clone.root) not in kept


@pytest.mark.asv
@pytest.mark.rotating
def test_counts_of_another_backend_are_added_to_those_of_a_commit(clone):
    """Also to those of a backend that this run does not know, such as one with the compiled plugin."""
    only_cases(clone, "dispatch of gelu")
    clone.run("count", "--backend", "numpy", status=0)
    (kept,) = (clone.root / "asv_benches" / "results" / counting.MACHINE).glob("*-installed.json")
    kept.write_text(kept.read_text(encoding="utf-8").replace("'numpy'", "'numpy+native'"), encoding="utf-8")
    clone.run("count", "--backend", "torch", status=0)
    (machine,) = results.read([clone.root / "asv_benches"]).machines
    values = [(each.backend, each.values[0] is None) for each in machine.series]
    assert values == [("torch", False), ("numpy+native", False)] * 2


@pytest.mark.asv
def test_a_shallow_clone_has_no_history(clone, tmp_path):
    (clone.root / "NOTES").write_text("another\n", encoding="utf-8")
    clone.commit("another")
    shallow = Clone.__new__(Clone)
    shallow.root = tmp_path / "shallow"
    clone.git("clone", "--quiet", "--depth=1", f"file://{clone.root}", str(shallow.root))
    done = shallow.run("history", "--minutes", "1", status=1)
    assert "run git fetch --unshallow" in done.stderr


def test_the_newest_commits_are_counted_first_and_then_the_widest_gaps(monkeypatch):
    monkeypatch.setattr("tracking.project.RECENT", 2)
    line = list("abcdefghij")
    measured, order = set(), []
    while (commit := next_missing(line, measured)) is not None:
        order.append(commit)
        measured.add(commit)
    assert order[:4] == ["j", "i", "a", "e"]
    assert sorted(order) == line
    assert next_missing([], set()) is None


def test_the_newest_counted_commit_is_near_head():
    """Every landed state is counted: `make bench-history` counts the newest commits first."""
    ahead = next(machine for machine in results.read([BENCHES]).machines if machine.name == counting.MACHINE).ahead
    assert ahead <= AHEAD, f"{ahead} commits changed code since the newest counted one; run make bench-history and commit"


def test_the_newest_commits_have_counts_without_gaps_and_all_are_small():
    counted = counting.counted_commits(changed_code(), ["numpy", "torch"])
    line = changed_code()
    newest = max(at for at, commit in enumerate(line) if commit in counted)
    recent = line[newest + 1 - GAPLESS : newest + 1]
    assert not [commit for commit in recent if commit not in counted]
    size = sum(path.stat().st_size for path in Path(ROOT / "asv_benches" / "results" / counting.MACHINE).iterdir())
    assert size < 3e6
    facts = [json.loads(path.read_text()) for path in (ROOT / "asv_benches" / "facts" / counting.MACHINE).iterdir()]
    assert all("numpy" in each["versions"] for each in facts)
