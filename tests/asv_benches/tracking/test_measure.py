"""Commits measured by asv, in a clone of this project: what is measured, what is refused, and the gate's verdicts."""

import json
import os
import shutil
import sys

import processes
import pytest
from asv.results import Results
from processes import printed
from project import INSTALLED, ROOT
from sample_history import Repository

from tracking import gate
from tracking.gate import Cell, Verdict
from tracking.measure import Choice
from tracking.project import next_missing
from tracking.series import cells

TINY = ("--benchmark", "one_thread.Time", "--case", "tiny")
ATTEND = ("mha_core/ops/attention.py", '    return _attention(query, key, value, options.pop("sink", None), **options).out')
"""The file and the line of the public function in which tests plant a fault."""


class Clone(Repository):
    """This working tree, committed in a new repository."""

    def __init__(self, root):
        super().__init__(root)
        for name in Repository(ROOT).git("ls-files", "-z", "--cached", "--others", "--exclude-standard").split("\0"):
            if name.startswith(("asv_benches/results/", "asv_benches/facts/", "docs/")) or not (ROOT / name).is_file():
                continue
            (self.root / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, self.root / name)
        self.git("init", "--quiet", "--initial-branch=main")
        self.commit("as it is")

    def commit(self, subject):
        self.git("add", "--all")
        return super().commit(subject)

    def append(self, path, text):
        with (self.root / path).open("a", encoding="utf-8") as file:
            file.write(text)

    def change(self, path, old, new, subject):
        text = (self.root / path).read_text(encoding="utf-8")
        assert old in text
        (self.root / path).write_text(text.replace(old, new, 1), encoding="utf-8")
        return self.commit(subject)

    def run(self, *words, also=(), status=None):
        """Run ``python -m tracking`` in the clone; ``also`` are folders of other distributions."""
        paths = os.pathsep.join(map(str, (self.root / "asv_benches", self.root, self.root / "backends", *also)))
        options = {"cwd": self.root, "without": ("MACHINE", "MINUTES"), "PYTHONPATH": paths, "NO_COLOR": "1"}
        return processes.run([sys.executable, "-P", "-m", "tracking"], *words, status=status, **options)


pytestmark = pytest.mark.asv


@pytest.fixture(scope="module")
def clone(tmp_path_factory):
    return Clone(tmp_path_factory.mktemp("clone"))


@pytest.fixture(autouse=True)
def _as_it_was(request):
    """After each test, reset the clone to its first commit, without results."""
    yield
    if "clone" in request.fixturenames:
        there = request.getfixturevalue("clone")
        there.git("reset", "--quiet", "--hard", there.hashes[0])
        del there.hashes[1:]
        for folder in ("results", "facts", "html"):
            shutil.rmtree(there.root / "asv_benches" / folder, ignore_errors=True)


# measuring


def test_a_commit_is_measured_with_facts_and_published_and_shown(clone):
    clone.run("measure", "--backend", "numpy", *TINY, status=0)
    commit = clone.git("rev-parse", "HEAD")
    folder = clone.root / "asv_benches" / "results" / "local"
    assert sorted(path.name for path in folder.iterdir()) == [f"{commit[:8]}-installed.json", "machine.json"]
    values = {cell[:3]: cell.value for cell in cells(Results.load(str(folder / f"{commit[:8]}-installed.json"), "local"))}
    assert 1e-6 < values["one_thread.Time.time_call", "numpy", "tiny call 1x1x8x8"] < 1e-2
    facts = json.loads((clone.root / "asv_benches" / "facts" / "local" / f"{commit[:8]}.json").read_text(encoding="utf-8"))
    assert facts["whole"] == [], "a part is not the whole"
    assert set(facts["processor"]) == {"model", "cores", "flags", "system"}
    assert facts["backends"]["torch"]["libraries"]["torch"] == facts["versions"]["torch"]
    assert facts["backends"]["torch"]["devices"] == ["cpu"]
    kept = "".join(path.read_text(encoding="utf-8") for path in (clone.root / "asv_benches" / "results").rglob("*.json"))
    assert str(ROOT) not in kept and str(clone.root) not in kept and f'"{os.uname().nodename}"' not in kept

    asv = [sys.executable, "-m", "asv", "--config", "asv_benches/asv.conf.json", "publish"]
    printed(asv, cwd=clone.root)
    graphs = [path.name for path in (clone.root / "asv_benches" / "html" / "graphs").rglob("one_thread.Time.time_call.json")]
    assert graphs

    clone.run("report", status=0)
    text = (clone.root / "asv_benches" / "report.html").read_text(encoding="utf-8")
    assert "tiny call 1x1x8x8" in text and "time, one thread" in text


def test_history_measures_the_last_commit_first_then_the_others_and_commits_each(clone):
    """A commit that changes only a document is not measured."""
    first = clone.git("rev-parse", "HEAD")
    (clone.root / "NOTES").write_text("a document\n", encoding="utf-8")
    clone.commit("a document")
    last = clone.change("mha_core/__init__.py", "0.1.0", "0.1.1", "code")
    shorten(clone)
    done = clone.run("history", "--machine", "ci-2core", "--commit", "--backend", "numpy", status=0)
    assert [line for line in done.stderr.splitlines() if ": measured" in line or "without results" in line] == [
        f"{last[:8]}: measured",
        f"{first[:8]}: measured",
        "commits without results: none",
    ]
    assert clone.git("log", "--format=%s", "-2").splitlines() == [f"Results of {c[:8]} on ci-2core" for c in (first, last)]
    assert clone.git("status", "--porcelain") == ""


def test_a_shallow_clone_has_no_history(clone, tmp_path):
    (clone.root / "NOTES").write_text("another\n", encoding="utf-8")
    clone.commit("another")
    shallow = Clone.__new__(Clone)
    shallow.root = tmp_path / "shallow"
    clone.git("clone", "--quiet", "--depth=1", f"file://{clone.root}", str(shallow.root))
    done = shallow.run("history", "--minutes", "1", status=1)
    assert "run git fetch --unshallow" in done.stderr


def test_the_most_informative_commit_is_measured_next():
    line = list("abcdefgh")
    measured, order = set(), []
    while (commit := next_missing(line, measured)) is not None:
        order.append(commit)
        measured.add(commit)
    assert order[:3] == ["h", "a", "d"]
    assert sorted(order) == line
    assert next_missing([], set()) is None


def shorten(clone):
    """Remove all benchmarks except one case on one thread."""
    benches = "asv_benches/benchmarks"
    clone.git("rm", "--quiet", *(f"{benches}/{name}.py" for name in ("all_cores", "memory", "dispatch")))
    end = "\n\nCASES = {name: problem for name, problem in CASES.items() if name.startswith('tiny')}\n"
    clone.append("conformance/mha_conformance/bench/cases.py", end)
    return clone.commit("fewer benchmarks")


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


# the gate


@pytest.mark.parametrize("backend", ["numpy", "torch"])
def test_a_planted_slowdown_is_reported_by_backend_and_case(clone, backend):
    base = clone.git("rev-parse", "HEAD")
    clone.change(*ATTEND, "    for _ in range(20000): pass\n" + ATTEND[1], "slower")
    done = clone.run("gate", base, "--backend", backend, "--case", "tiny", status=Verdict.SLOWER)
    assert f"slower: {backend}, tiny call 1x1x8x8: " in done.stdout


def test_a_commit_that_answers_wrongly_was_not_measured(clone):
    base = clone.git("rev-parse", "HEAD")
    clone.change(*ATTEND, ATTEND[1] + " * 2", "broken")
    done = clone.run("gate", base, "--backend", "numpy", "--case", "Tiny", status=Verdict.NOT_MEASURED)
    assert "not measured: numpy, tiny call 1x1x8x8" in done.stdout


def cell(before, after, slower=False, backend="numpy", samples=20):
    return Cell(backend, "a case", before, after, samples, slower)


def test_a_slowdown_and_nothing_measured_are_different_verdicts():
    numpy, both = Choice(["numpy"]), Choice(["numpy", "torch"])
    assert gate.verdict([cell(1.0, 1.05)], numpy) == Verdict.AS_FAST == 0
    assert gate.verdict([cell(1.0, 1.3, slower=True)], numpy) == Verdict.SLOWER == 1
    assert gate.verdict([], numpy) == gate.verdict([], Choice([])) == Verdict.NOT_MEASURED == 3
    assert gate.verdict([cell(1.0, float("nan"))], numpy) == Verdict.NOT_MEASURED
    assert gate.verdict([cell(1.0, 1.3, samples=6)], numpy) == Verdict.NOT_MEASURED
    assert gate.verdict([cell(1.0, 1.05, samples=6)], numpy) == Verdict.AS_FAST
    assert gate.verdict([cell(1.0, None)], numpy) == Verdict.NOT_MEASURED
    assert gate.verdict([cell(None, 1.0)], numpy) == Verdict.NOT_MEASURED
    assert gate.verdict([cell(1.0, 1.0)], both) == Verdict.NOT_MEASURED
    assert gate.verdict([cell(1.0, 1.3, slower=True), cell(1.0, None)], both) == Verdict.SLOWER


def test_the_gate_names_what_it_found(capsys):
    choice = Choice(["numpy", "torch"])
    undecided = [
        Cell("numpy", "failing", 1.0, None),
        Cell("numpy", "newer", float("nan"), 1.0),
        Cell("numpy", "long", 1.0, 1.5, samples=6),
    ]
    gate.show([cell(0.010, 0.013, slower=True), *undecided], choice, 1.1)
    printed = capsys.readouterr().out
    assert "slower: numpy, a case: 1.30x" in printed
    assert "not measured: numpy, failing: failed after" in printed
    assert "not measured: numpy, newer: skipped before" in printed
    assert "not measured: numpy, long: 1.50x, with too few samples" in printed
    assert "not measured: torch, in any case" in printed


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
        (["history", "--commit", "--backend", "numpy"], "results of local are not committed"),
    ],
)
def test_bad_arguments_are_refused_with_a_reason(clone, words, message):
    done = clone.run(*words)
    assert done.returncode in (1, 2)
    assert message in " ".join((done.stdout + done.stderr).split())
    assert "Traceback" not in done.stderr
