"""The report of asv's measurements: its numbers, its verdicts, and its errors."""

import json
import shutil
import sys
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial

import command
import processes
import pytest
from project import ROOT
from sample_history import (
    COST,
    COUNTS,
    DISPATCH,
    LAST,
    LATE,
    MEMORY,
    NAN,
    SLOWER,
    STEP,
    TIME,
    UNMEASURED,
    Project,
    line,
    measured,
    only,
    steady,
)

import mha_conformance.cli
from mha_conformance.history import page, repository, results

# the numbers


def test_each_line_has_the_values_that_were_measured_and_gaps_elsewhere(machine, project):
    days = [at for at in range(LAST + 1) if at not in UNMEASURED]
    assert [commit.hash for commit in machine.commits] == [project.hashes[at] for at in days]
    assert [commit.place for commit in machine.commits] == days
    assert line(machine, TIME, "short", "torch").values == tuple(
        0.020 * (SLOWER if at >= STEP else 1) * steady(at) for at in days
    )
    assert line(machine, TIME, "long", "numpy").values == tuple(None if at == 6 else 0.5 * steady(at) for at in days)
    assert line(machine, MEMORY, "long", "late").values == tuple(1e8 if LATE <= at < LAST else None for at in days)


def test_a_backend_that_is_not_in_the_latest_benchmarks_json_is_included(machine, history, project):
    assert "late" not in (project.results / "benchmarks.json").read_text(encoding="utf-8")
    assert history.backends == ("numpy", "torch", "late")
    assert {each.benchmark.name for each in machine.series if each.backend == "late"} == {TIME, COST, MEMORY}


def test_a_failed_measurement_is_distinguished_from_a_missing_one(machine):
    torch = line(machine, TIME, "long", "torch")
    assert torch.failed == {len(machine.commits) - 1} and torch.values[-1] is None
    assert line(machine, TIME, "long", "numpy").failed == frozenset()


def test_time_comes_first_then_cost_then_benchmarks_with_fewer_cases(machine):
    assert [each.name for each in machine.benchmarks] == [TIME, COST, MEMORY]
    assert [each.title for each in machine.benchmarks] == ["time, one thread", "cost relative to plain NumPy", "peak memory"]


def test_a_benchmark_with_few_cases_comes_last_whatever_its_unit(small):
    for name, cases in ((MEMORY, ["a", "b"]), (TIME, ["a"])):
        small.measure(small.hashes[0], name, {("numpy", case): 1.0 for case in cases})
    assert [each.name for each in only(small).benchmarks] == [MEMORY, TIME]


def test_a_benchmark_without_a_title_has_its_name(small):
    small.measure(small.hashes[0], DISPATCH, {("numpy", "attention, causal"): 2.0})
    (one,) = only(small).series
    assert (one.benchmark.title, one.benchmark.unit, one.case) == (DISPATCH, "us", "attention, causal")


def test_values_of_another_version_are_left_out(small):
    for at, version in enumerate("1122"):
        small.measure(small.hashes[at], TIME, {("numpy", "case"): at + 1.0}, version=version)
    small.measure(small.hashes[1], COST, {("numpy", "case"): 5.0})
    machine = only(small)
    assert [commit.hash for commit in machine.commits] == small.hashes[1:4]
    assert line(machine, TIME, "case", "numpy").values == (None, 3.0, 4.0)
    assert line(machine, COST, "case", "numpy").values == (5.0, None, None)


@pytest.mark.parametrize(("environments", "second", "kept"), [("ab", 2.0, 2.0), ("ba", 2.0, 2.0), ("ab", NAN, 1.0)])
def test_the_later_of_two_measurements_is_kept_unless_it_was_skipped(small, environments, second, kept):
    for hour, (environment, value) in enumerate(zip(environments, (1.0, second), strict=True), 1):
        measured(small, [value], environment=environment, started=datetime(2026, 1, 1, hour, tzinfo=UTC))
    assert only(small).series[0].values == (kept,)


def test_commits_of_a_branch_that_was_merged_are_left_out_and_counted(small):
    small.git("checkout", "--quiet", "-b", "side", small.hashes[3])
    small.commit("aside")
    aside = small.hashes.pop()
    small.git("checkout", "--quiet", "main")
    small.git("merge", "--quiet", "--no-ff", "--message=merge", "side", day=9)
    small.hashes.append(small.git("rev-parse", "HEAD"))
    measured(small, map(float, range(1, 10)))
    small.measure(aside, TIME, {("numpy", "case"): 100.0})
    history = results.read([small.config.parent])
    assert history.unrelated == 1
    assert history.machines[0].series[0].values == tuple(map(float, range(1, 10)))
    assert [commit.subject for commit in history.machines[0].commits][-2:] == ["commit 7", "merge"]


def test_only_commits_that_change_code_count_between_two(small):
    """But all of them do in a project without the folders of this one."""
    for at in range(4):
        if at % 2:
            (small.root / "mha_core").mkdir(exist_ok=True)
            (small.root / "mha_core" / "a.py").write_text(f"{at}\n", encoding="utf-8")
            small.git("add", "mha_core")
        small.commit(f"commit {8 + at}")
    measured(small, [1.0] * 11)
    machine = only(small)
    assert [commit.place for commit in machine.commits] == [-1] * 9 + [0, 0] and machine.ahead == 1


def test_a_merge_that_changes_code_is_one_commit_of_the_history(small):
    small.git("checkout", "--quiet", "-b", "side")
    for text in ("one\n", "two\n"):
        (small.root / "mha_core").mkdir(exist_ok=True)
        (small.root / "mha_core" / "a.py").write_text(text, encoding="utf-8")
        small.git("add", "mha_core")
        small.commit("aside")
    small.git("checkout", "--quiet", "main")
    small.commit("without code")
    small.git("merge", "--quiet", "--no-ff", "--message=merge", "side", day=12)
    assert repository.changed_code(small.root, ["mha_core"]) == [small.git("rev-parse", "HEAD")]


def test_each_machine_has_its_own_history(small):
    measured(small, [1.0, 2.0])
    measured(small, [3.0], machine="h200")
    history = results.read([small.config.parent])
    assert [(each.name, len(each.commits)) for each in history.machines] == [("ci-2core", 2), ("h200", 1)]


# results of others


def test_results_of_another_machine_are_added_by_their_files_alone(small, tmp_path):
    """Their commits are known from the repository of the first folder."""
    measured(small, [1.0, 2.0])
    theirs = shutil.copytree(small.results, tmp_path / "theirs" / "results")
    mine, other = results.read([small.config.parent, theirs]).machines
    assert (mine.name, other.name) == ("ci-2core, sample", "ci-2core, theirs")
    assert other.commits == mine.commits and other.series == mine.series
    assert mine.processors[0].startswith("EPYC") and other.processors == ("", ""), "theirs came without facts"


def test_results_of_another_project_are_in_the_order_of_their_dates(small, tmp_path):
    """Its commits are unknown; the folder has neither a repository nor asv's configuration."""
    folder = tmp_path / "plugin"
    folder.mkdir()
    other = Project(folder)
    for hash, day in (("b" * 40, 2), ("a" * 40, 1), ("c" * 40, 3)):
        other.measure(hash, COUNTS, {("plugin", "case"): 1000 * day}, date=86_400_000 * day, machine="laptop")
    (alone,) = results.read([other.results]).machines
    assert [(commit.hash[0], commit.date, commit.place) for commit in alone.commits] == [
        ("a", "1970-01-02", 0),
        ("b", "1970-01-03", 1),
        ("c", "1970-01-04", 2),
    ]
    assert alone.series[0].values == (1000, 2000, 3000) and alone.name == "laptop"
    assert alone.counters == ("valgrind's processor, python 3.11",) * 3
    measured(small, [1.0, 2.0])
    both = results.read([small.config.parent, other.results])
    assert both.machines[0] == replace(only(small), name="ci-2core, sample"), "the commits of the other project do not count"
    assert [machine.name for machine in both.machines] == ["ci-2core, sample", "laptop, asv_benches"]
    assert both.backends == ("numpy", "plugin") and both.unrelated == 0


def test_results_are_ordered_by_date_where_asv_clones_the_repository(small):
    """Its address is not a folder that git could list."""
    settings = json.loads(small.config.read_text(encoding="utf-8"))
    small.config.write_text(json.dumps(settings | {"repo": "https://example.invalid/sample.git"}), encoding="utf-8")
    measured(small, [1.0], date=86_400_000)
    ((commit,),) = (machine.commits for machine in results.read([small.config.parent]).machines)
    assert (commit.hash, commit.date, commit.subject) == (small.hashes[0], "1970-01-02", "")


def test_machines_of_one_name_are_told_apart_and_a_folder_counts_once(small, tmp_path):
    measured(small, [1.0])
    places = [shutil.copytree(small.results, tmp_path / name / "benchmarks" / "results") for name in ("one", "two")]
    names = [machine.name for machine in results.read([*places, places[0]]).machines]
    assert names == ["ci-2core, benchmarks", "ci-2core, benchmarks (2)"]


# the command


run = partial(command.run, "report")


def test_the_command_writes_the_page(project, tmp_path):
    output = tmp_path / "new" / "report.html"
    done = run(project.config.parent, "--output", output)
    assert done.exit_code == 0, done.output
    assert output.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    assert [path.name for path in output.parent.iterdir()] == ["report.html"]


def refused(project, tmp_path, exit_code=3):
    """Return the error of a run that writes no page; exit code 3, the default, means that there is no history."""
    output = tmp_path / "report.html"
    done = run(project.config.parent, "--output", output)
    assert done.exit_code == exit_code and not output.exists() and done.stdout == ""
    return done.stderr


def test_without_results_the_command_says_how_to_measure(small, tmp_path):
    said = refused(small, tmp_path)
    assert said == (f"error: no results in {small.results}, which has no benchmarks.json: `asv run` writes it\n")


def test_results_of_other_commits_alone_are_not_a_history(small, tmp_path):
    measured(small, [1.0])
    small.git("update-ref", "refs/heads/main", small.git("commit-tree", "-m", "another root", "HEAD^{tree}"))
    assert "no result is of a commit of HEAD's line" in refused(small, tmp_path)


def test_without_a_repository_the_command_says_so(small, tmp_path):
    measured(small, [1.0])
    (small.root / ".git").rename(small.root / "git")
    (small.root / ".git").write_text("gitdir: nowhere\n", encoding="utf-8")
    assert "git cannot list the commits of" in refused(small, tmp_path)


def test_a_benchmark_without_a_backend_is_left_out(small, tmp_path):
    measured(small, [1.0])
    small.measure(small.hashes[0], COST, {("numpy", "case"): 3.0})
    small.known[TIME]["param_names"] = ["case", "backend"]
    small.write_benchmarks()
    assert [each.benchmark.name for each in only(small).series] == [COST]
    small.known[COST]["param_names"] = []
    small.write_benchmarks()
    assert "no result is of a commit of HEAD's line and of a benchmark with the parameter backend" in refused(small, tmp_path)


@pytest.mark.parametrize(("name", "text"), [("asv.conf.json", "{"), ("facts/ci-2core/{short}.json", "[1]")])
def test_a_broken_file_is_named(small, tmp_path, name, text):
    measured(small, [1.0])
    path = small.config.parent / name.format(short=small.hashes[0][:8])
    path.write_text(text, encoding="utf-8")
    assert refused(small, tmp_path, 1).startswith(f"error: {path}: ")


def test_a_folder_with_neither_configuration_nor_results_is_named(tmp_path):
    done = run(tmp_path, "--output", tmp_path / "report.html")
    assert done.exit_code == 3 and done.stderr.startswith(f"error: {tmp_path} has neither asv.conf.json nor benchmarks.json")


def test_a_library_that_is_missing_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "mha_conformance.cli.report", None)
    monkeypatch.delattr(mha_conformance.cli, "report", raising=False)
    done = run(tmp_path)
    assert done.exit_code == 1 and done.stderr.endswith("is missing; install the extra report of mha-conformance\n")


def test_a_results_file_that_is_broken_is_an_error(small, tmp_path):
    measured(small, [1.0])
    (path,) = (small.results / "ci-2core").glob("*-env.json")
    path.write_text("{", encoding="utf-8")
    assert f"Error parsing JSON in file '{path}'" in refused(small, tmp_path, 1)


@pytest.mark.parametrize(("status", "built"), [(0, True), (3, True), (1, False), (2, False)])
def test_the_documentation_is_built_without_a_history_but_not_after_another_error(tmp_path, status, built):
    """`make docs`, with a command that exits with this status for the report, and a Python that prints a word for Sphinx."""
    (tmp_path / "bin").mkdir()
    for name, does in (("mha", f"exit {status}"), ("python", 'case "$*" in *sphinx*) echo built;; *) exit 9;; esac')):
        program = tmp_path / "bin" / name
        program.write_text(f"#!/bin/sh\n{does}\n")
        program.chmod(0o755)
    (tmp_path / "ready").touch()
    done = processes.run(["make", "docs", f"DEV={tmp_path}", "--assume-old", f"{tmp_path}/ready"], cwd=ROOT)
    assert ("built" in done.stdout.splitlines()) is built and (done.returncode == 0) is built, done


def test_results_of_other_commits_are_counted_when_a_page_is_written(small, tmp_path):
    measured(small, [1.0, 2.0])
    small.git("update-ref", "refs/heads/main", small.hashes[0])
    done = run(small.config.parent, "--output", tmp_path / "report.html")
    assert done.exit_code == 0 and "left out: 1 measured commit that is" in done.stderr


def test_a_page_that_fails_leaves_the_old_one(project, tmp_path, monkeypatch):
    output = tmp_path / "report.html"
    output.write_text("before", encoding="utf-8")
    history = results.read([project.config.parent])
    monkeypatch.setattr("mha_core.cli.offline.get_plotlyjs", lambda: "\ud800")  # not UTF-8: fails in the middle of writing
    with pytest.raises(UnicodeEncodeError):
        page.write(history, output)
    assert output.read_text(encoding="utf-8") == "before"
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]


# what is committed


def test_the_committed_history_goes_back_to_the_first_commit_that_runs():
    machine = next(each for each in results.read([ROOT / "asv_benches"]).machines if each.name == "ci-2core")
    assert {each.backend for each in machine.series} >= {"numpy", "torch"}
    assert machine.commits[0].place == 0 and len(machine.commits) >= 5
    newest = machine.commits[-1]
    for backend in ("numpy", "torch"):
        there = [each for each in machine.series if each.backend == backend and each.values[-1] is not None]
        assert len({each.benchmark.name for each in there}) >= 4, f"{backend} at {newest.short}"
    kept = [path.read_text(encoding="utf-8") for path in (ROOT / "asv_benches" / "facts" / machine.name).iterdir()]
    assert len(kept) >= len(machine.commits) and all(json.loads(text)["processor"]["model"] for text in kept)
