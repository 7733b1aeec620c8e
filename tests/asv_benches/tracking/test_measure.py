"""Commits measured by asv, in a clone of this project: what is measured, and what is refused."""

import json
import os
import sys

import pytest
from asv.results import Results
from processes import printed
from project import INSTALLED, ROOT
from project_clone import ATTEND

from mha_conformance.history import results
from mha_conformance.history.results import cells

TINY = ("--benchmark", "one_thread.Time", "--case", "tiny")
pytestmark = pytest.mark.asv


# measuring


def test_a_commit_is_measured_with_facts_and_published_and_shown(clone):
    clone.run("measure", "--backend", "numpy", *TINY, status=0)
    commit = clone.git("rev-parse", "HEAD")
    folder = clone.root / "asv_benches" / "results" / "local"
    assert sorted(path.name for path in folder.iterdir()) == [f"{commit[:8]}-installed.json", "machine.json"]
    values = {cell[:3]: cell.value for cell in cells(Results.load(str(folder / f"{commit[:8]}-installed.json"), "local"))}
    assert 1e-6 < values["one_thread.Time.time_call", "numpy", "tiny call 1x1x8x8"] < 1e-2
    facts = json.loads((clone.root / "asv_benches" / "facts" / "local" / f"{commit[:8]}.json").read_text(encoding="utf-8"))
    assert set(facts["processor"]) == {"model", "family", "number", "stepping", "caches", "cores", "flags", "system"}
    assert set(facts["rates"]) == {"matrix rate", "copy bandwidth"} and min(facts["rates"].values()) > 1e8
    assert facts["backends"]["torch"]["libraries"]["torch"] == facts["versions"]["torch"]
    assert facts["backends"]["torch"]["devices"] == ["cpu"]
    kept = "".join(path.read_text(encoding="utf-8") for path in (clone.root / "asv_benches" / "results").rglob("*.json"))
    assert str(ROOT) not in kept and str(clone.root) not in kept and f'"{os.uname().nodename}"' not in kept

    asv = [sys.executable, "-m", "asv", "--config", "asv_benches/asv.conf.json", "publish"]
    printed(asv, cwd=clone.root)
    graphs = [path.name for path in (clone.root / "asv_benches" / "html" / "graphs").rglob("one_thread.Time.time_call.json")]
    assert graphs

    (machine,) = results.read([clone.root / "asv_benches"]).machines
    assert {(each.benchmark.title, each.case) for each in machine.series} >= {("time, one thread", "tiny call 1x1x8x8")}


def test_results_are_committed_only_if_the_benchmarks_are(clone):
    clone.append("conformance/mha_conformance/bench/cases.py", "\n")
    done = clone.run("measure", "--machine", "ci-2core", "--backend", "numpy", *TINY, status=2)
    assert "the benchmarks have uncommitted changes" in " ".join(done.stderr.split())
    clone.git("checkout", "--quiet", ".")
    clone.append("mha_core/ops/tree.py", "\n")
    done = clone.run("measure", "--backend", "numpy", *TINY, status=0)
    assert "uncommitted changes are not measured: HEAD is" in done.stderr


# the check


def test_every_installed_backend_is_checked_third_party_ones_too(clone):
    done = clone.run("check", "--expect", "numpy", "--expect", "jax", *TINY, also=[INSTALLED], status=0)
    assert "every benchmark ran on numpy, jax" in done.stderr
    assert not (clone.root / "asv_benches" / "results").exists(), "nothing is kept"


def test_a_backend_that_was_not_measured_is_an_error(clone):
    done = clone.run("check", "--expect", "numpy", "--expect", "cupy", *TINY, status=1)
    assert "no benchmark measured cupy" in done.stderr
    assert "no benchmark measured numpy" not in done.stderr


def test_a_skipped_benchmark_is_an_error(clone):
    clone.change("mha_core/__init__.py", "__version__ =", "del causal\n__version__ =", "lost")
    done = clone.run("check", "--expect", "numpy", "--benchmark", "one_thread.Time", "--case", "2048x64, causal", status=1)
    assert "one_thread.Time.time_call, numpy, attention 1x8x2048x64, causal: skipped" in done.stderr


def test_a_wrong_answer_is_an_error_and_is_not_timed(clone):
    clone.change(*ATTEND, ATTEND[1] + " * 2", "broken")
    done = clone.run("check", "--expect", "numpy", *TINY, status=1)
    assert "asv ended with status 2" in done.stderr
    assert "no benchmark measured numpy" in done.stderr


# bad arguments


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["gate", "no-such-commit"], "no commit is named 'no-such-commit'"),
        (["gate", "HEAD", "--backend", "nothing"], "'nothing' is not ready; expected one of numpy, torch"),
        (["gate", "HEAD", "--backend", "numpy"], "itself; give another commit to compare with"),
        (
            ["measure", "--machine", "unknown", "--backend", "numpy", *TINY],
            "'unknown' is not in machines.json; expected one of ci-2core, local",
        ),
        (["measure", "--backend", "numpy", "--case", "no such (case"], "asv ran no benchmark of"),
        (["gate", "HEAD~1", "--case", "no such case"], "no case has 'no such case' in its name"),
        (["find", "dispatch", "numpy", "--good", "HEAD~1"], "'dispatch' is in the names of 6 cases"),
    ],
)
def test_bad_arguments_are_refused_with_a_reason(clone, words, message):
    done = clone.run(*words)
    assert done.returncode in (1, 2)
    assert message in " ".join((done.stdout + done.stderr).split())
    assert "Traceback" not in done.stderr
