"""Sample repositories with commits, and with results that asv itself writes: the input of the report."""

import copy
import itertools
import json
import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from asv.results import Results
from asv.runner import BenchmarkResult
from asv.util import write_json
from processes import printed

from mha_conformance.history import results

NAN = float("nan")  # what asv writes for a skipped benchmark; for a failed one it writes None
TIME, COST, MEMORY, COUNTS, DISPATCH = (
    "one_thread.Time.time_call",
    "one_thread.Cost.track_cost",
    "memory.Memory.track_peak",
    "instructions.Instructions.track_instructions",
    "dispatch.D.track",
)
UNITS = {TIME: "seconds", COST: "x", MEMORY: "bytes", COUNTS: "instructions", DISPATCH: "us"}
TITLES = {TIME: "time, one thread", COST: "cost relative to plain NumPy", MEMORY: "peak memory"}


@dataclass
class Repository:
    """A new repository."""

    root: Path
    hashes: list[str] = field(default_factory=list)
    """The commits, oldest first, one a day from the first of January 2026."""

    def git(self, *words, day=1, text=None):
        """Return what a git command prints."""
        names = {f"GIT_{who}_{what}": "a@b.example" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
        dates = {f"GIT_{who}_DATE": f"2026-01-{day:02} 12:00:00 +0000" for who in ("AUTHOR", "COMMITTER")}
        alone = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
        return printed(["git", "-C", self.root, *words], text=text, **names, **dates, **alone).strip()

    def commit(self, subject):
        self.git("commit", "--quiet", "--allow-empty", "--file=-", day=len(self.hashes) + 1, text=subject)
        self.hashes.append(self.git("rev-parse", "HEAD"))
        return self.hashes[-1]


@dataclass
class Project(Repository):
    """A repository with asv's configuration."""

    known: dict[str, dict] = field(default_factory=dict)
    """The last description of each benchmark, by name."""

    def __post_init__(self):
        self.results.mkdir(parents=True)
        settings = {"version": 1, "project": "sample", "repo": "..", "branches": ["HEAD"], "results_dir": "results"}
        self.config.write_text(json.dumps(settings), encoding="utf-8")
        self.git("init", "--quiet", "--initial-branch=main")

    @property
    def config(self):
        return self.root / "asv_benches" / "asv.conf.json"

    @property
    def results(self):
        return self.root / "asv_benches" / "results"

    def write_benchmarks(self):
        write_json(str(self.results / "benchmarks.json"), self.known, 2)

    def measure(self, commit, name, values, *, version="1", machine="ci-2core", environment="env", started=None, date=0):
        """Write the results of a benchmark at a commit, and its description, as asv does.

        ``values``: by (backend, case); a combination without a value was skipped.
        """
        names = [list(dict.fromkeys(words)) for words in zip(*values, strict=True)]
        described = {
            "name": name,
            "params": [list(map(repr, words)) for words in names],
            "param_names": ["backend", "case"],
            "unit": UNITS[name],
            "version": version,
            "type": "track",
        }
        self.known[name] = described | ({"pretty_name": TITLES[name]} if name in TITLES else {})
        self.write_benchmarks()
        facts = {"machine": machine, "os": "Linux", "arch": "x86_64", "cpu": f"cpu of {machine}", "num_cpu": "2", "ram": "1"}
        write_json(str(self.results / machine / "machine.json"), facts, 1)
        row = [values.get(cell, NAN) for cell in itertools.product(*names)]
        empty = [None] * len(row)
        results = Results(facts | {"python": "3.11"}, {}, commit, date, "3.11", environment, {})
        results.load_data(str(self.results))
        results.add_result(self.known[name], BenchmarkResult(row, empty, empty, 0, "", None), started_at=started)
        results.save(str(self.results))

    def facts(self, commit, facts, machine="ci-2core"):
        """Write what is known of a measurement, beside the results."""
        folder = self.root / "asv_benches" / "facts" / machine
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{commit[:8]}.json").write_text(json.dumps(facts), encoding="utf-8")


def line(machine, benchmark, case, backend):
    """Return the only series with these names."""
    (series_of,) = [
        each for each in machine.series if (each.benchmark.name, each.case, each.backend) == (benchmark, case, backend)
    ]
    return series_of


def measured(project, values, backend="numpy", **options):
    """Write one value for each commit, and the processor."""
    for commit, value in zip(project.hashes, values, strict=False):
        project.measure(commit, TIME, {(backend, "case"): value}, **options)
        project.facts(commit, {"processor": PROCESSOR}, options.get("machine", "ci-2core"))


def only(project):
    """Return the history of the project's only machine."""
    (machine,) = results.read([project.config.parent]).machines
    return machine


def days(root, count=8):
    """Return a repository with ``count`` commits and no results."""
    project = Project(root)
    for at in range(count):
        project.commit(f"commit {at}")
    return project


@pytest.fixture(scope="session")
def eight_commits(tmp_path_factory):
    return days(tmp_path_factory.mktemp("days"))


@pytest.fixture
def small(eight_commits, tmp_path):
    """A repository of eight commits, without results, for one test."""
    project = copy.deepcopy(eight_commits)
    project.root = shutil.copytree(eight_commits.root, tmp_path, dirs_exist_ok=True)
    return project


PROCESSOR = {
    "model": "EPYC <1>",
    "family": 25,
    "number": 1,
    "stepping": 2,
    "caches": {"L2": "512K"},
    "cores": 2,
    "flags": ["avx2", "avx512f"],
    "system": "Linux x86_64",
}
SUBJECTS = {
    5: "a long subject, " + "word " * 120 + "and its end",
    9: """slower: </script><script>document.title = "taken"</script> <b>bold</b> & 'quotes' {{ 1 }} %{y} $x$""",
}
UNMEASURED = {4, 8}
STEP = 9  # torch is slower from here on, in one case of one benchmark
LATE = 10  # the third backend has results from here on, but not for the last commit
LAST = 13
SLOWER = 1.4


def steady(at):
    """Return a level with a little noise, the same in every run."""
    return 1 + (at * 7 % 5 - 2) / 500


def planted(root):
    """Return a project with two cases on three backends, a regression, gaps, a failure, a backend not in benchmarks.json."""
    project = Project(root)
    for at in range(LAST + 1):
        project.commit(SUBJECTS.get(at, f"the change of day {at + 1}"))
    for at, commit in enumerate(project.hashes):
        if at in UNMEASURED:
            continue
        backends = ["numpy", "torch", *["late"] * (LATE <= at < LAST)]
        slower = SLOWER if at >= STEP else 1
        seconds = {"numpy": {"short": 0.010, "long": 0.5}, "torch": {"short": 0.020 * slower, "long": 0.4}}
        seconds["late"] = {"short": 0.1, "long": 3.0}
        times = {(name, case): value * steady(at) for name in backends for case, value in seconds[name].items()}
        costs = {cell: value / {"short": 0.1, "long": 2.0}[cell[1]] for cell, value in times.items()}
        costs["torch", "short"] /= slower
        bytes_of = {(name, "long"): 1e8 * (1 + at * (name == "numpy") / 1000) for name in backends}
        if at == 6:
            del times["numpy", "long"]
        if at == LAST:
            times["torch", "long"] = None
            del bytes_of["torch", "long"]
        for name, values in ((TIME, times), (COST, costs), (MEMORY, bytes_of)):
            project.measure(commit, name, values)
    for commit in project.hashes:
        project.facts(commit, {"processor": PROCESSOR, "versions": {"python": "3.11.9", "numpy": "2.4.6"}})
    return project
