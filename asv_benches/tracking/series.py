"""The results of asv as series: one benchmark of one case on one backend, a value for each measured commit."""

from __future__ import annotations

import ast
import json
import math
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from asv.benchmarks import Benchmarks
from asv.config import Config
from asv.results import Results, iter_results_paths

UNITS = ("seconds", "x", "bytes")
"""Time stands before cost, and cost before memory."""

MEASURE = "`make bench` measures this commit, `make bench-history` those before it"


class NoHistory(LookupError):
    """There is nothing to show."""


class NoBackend(ValueError):
    """A benchmark of which it is not known on what backend it ran."""


@dataclass(frozen=True)
class Commit:
    """`place` counts from the first commit of the branch, measured or not."""

    hash: str
    date: str
    subject: str
    place: int

    @property
    def short(self) -> str:
        return self.hash[:8]


@dataclass(frozen=True)
class Benchmark:
    name: str
    title: str
    unit: str


@dataclass(frozen=True)
class Series:
    """One value for each commit of its machine; None is a gap, and `failed` says at which of them the call had failed."""

    benchmark: Benchmark
    case: str
    backend: str
    values: tuple[float | None, ...]
    failed: frozenset[int]

    @property
    def newest(self) -> int | None:
        """The last commit at which it was tried."""
        tried = [at for at, value in enumerate(self.values) if value is not None or at in self.failed]
        return tried[-1] if tried else None


@dataclass(frozen=True)
class Machine:
    """`commits` are those measured here, oldest first; `processors` belong to them, "" where nothing is known."""

    name: str
    commits: tuple[Commit, ...]
    series: tuple[Series, ...]
    processors: tuple[str, ...]
    versions: Mapping[str, str]

    @property
    def benchmarks(self) -> tuple[Benchmark, ...]:
        return tuple(dict.fromkeys(each.benchmark for each in self.series))

    @property
    def cases(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(each.case for each in self.series))


@dataclass(frozen=True)
class History:
    """`backends` in one order for all machines; `strangers` counts measured commits that are not of this branch."""

    project: str
    machines: tuple[Machine, ...]
    backends: tuple[str, ...]
    strangers: int


def read(config: Path) -> History:
    """All that asv has measured of the commits of HEAD, first parents only.

    A value counts where its benchmark still exists in the same version, as for asv itself. Backends and cases come from the
    results, for benchmarks.json knows only those of its last writer.

    Raises NoHistory where there is no value, NoBackend, and asv's UserError for a file that asv cannot read.
    """
    conf = Config.load(str(config))
    root = config.resolve().parent
    conf.results_dir = str(root / conf.results_dir)
    paths = sorted(iter_results_paths(conf.results_dir)) if Path(conf.results_dir).is_dir() else []
    if not paths:
        raise NoHistory(f"no results in {conf.results_dir}: {MEASURE}")
    known = Benchmarks.load(conf)
    commits = {commit.hash: commit for commit in _commits(root / conf.repo)}
    by_machine: dict[str, list[Results]] = {}
    strangers = set()
    for folder, name, machine in paths:
        results = Results.load(str(Path(folder) / name), machine_name=machine)
        if results.commit_hash in commits:
            by_machine.setdefault(machine, []).append(results)
        else:
            strangers.add(results.commit_hash)
    names = _names(known, [each for found in by_machine.values() for each in found])
    machines = [_machine(name, by_machine[name], known, commits, names, root / "facts" / name) for name in sorted(by_machine)]
    measured = [machine for machine in machines if machine.series]
    if not measured:
        raise NoHistory(f"no value in {conf.results_dir} is of a benchmark and a commit of this branch: {MEASURE}")
    backends = {each.backend for machine in measured for each in machine.series}
    return History(conf.project, tuple(measured), tuple(name for name in names[0] if name in backends), len(strangers))


def _commits(repo: Path) -> list[Commit]:
    command = ["git", "-C", str(repo), "log", "--first-parent", "--reverse", "--format=%H%x1f%cs%x1f%s", "HEAD"]
    told = subprocess.run(command, capture_output=True, encoding="utf-8", errors="replace", check=False)
    if told.returncode:
        raise NoHistory(f"git knows no commits in {repo}: {told.stderr.strip()}")
    lines = [line.split("\x1f", 2) for line in told.stdout.split("\n") if line]
    return [Commit(*line, place) for place, line in enumerate(lines)]


def _names(known: Mapping[str, Any], results: Iterable[Results]) -> tuple[list[str], list[str]]:
    """Backends and cases in their order: as benchmarks.json has them, then as they are found."""
    backends: dict[str, None] = {}
    cases: dict[str, None] = {}
    listed = [known[benchmark.name]["params"] for benchmark in _benchmarks(known)]
    found = [each.get_result_params(name) for each in results for name in sorted(each.get_result_keys(known))]
    for params in listed + found:
        for backend, case in map(_cell, product(*params)):
            backends.setdefault(backend)
            cases.setdefault(case)
    return list(backends), list(cases)


def _benchmarks(known: Mapping[str, Any]) -> list[Benchmark]:
    """Those that have most cases first."""
    found = []
    for name, each in known.items():
        if each["param_names"][:1] != ["backend"]:
            raise NoBackend(f"the first parameter of {name} is not backend, but {', '.join(each['param_names'][:1]) or 'none'}")
        found.append(Benchmark(name, each.get("pretty_name") or name, each["unit"]))

    def order(benchmark: Benchmark) -> tuple[int, int, str]:
        unit = UNITS.index(benchmark.unit) if benchmark.unit in UNITS else len(UNITS)
        return -len(list(product(*known[benchmark.name]["params"][1:]))), unit, benchmark.name

    return sorted(found, key=order)


def _cell(params: tuple[str, ...]) -> tuple[str, str]:
    """Backend and case of one combination of parameters, which asv keeps as repr writes them."""
    backend, *case = (str(ast.literal_eval(text)) if text[:1] in {"'", '"'} else text for text in params)
    return backend, ", ".join(case)


def _machine(
    name: str,
    results: list[Results],
    known: Mapping[str, Any],
    commits: Mapping[str, Commit],
    names: tuple[list[str], list[str]],
    facts: Path,
) -> Machine:
    results = [each for each in results if each.get_result_keys(known)]
    measured = sorted({commits[each.commit_hash] for each in results}, key=lambda commit: commit.place)
    position = {commit.hash: at for at, commit in enumerate(measured)}
    values = []
    for each in results:
        for key in each.get_result_keys(known):
            params, started = each.get_result_params(key), each.started_at[key] or 0
            cells = zip(map(_cell, product(*params)), each.get_result_value(key, params), strict=True)
            values += [(started, key, cell, position[each.commit_hash], value) for cell, value in cells]
    table: dict[tuple[str, str, str], dict[int, float | None]] = {}
    for _, key, (backend, case), at, value in sorted(values, key=lambda found: found[0]):  # what was measured last stays
        if value is None or math.isfinite(value):  # None: it failed; NaN: it was not tried
            table.setdefault((case, key, backend), {})[at] = value
    benchmarks = _benchmarks(known)
    series = [
        _series(benchmark, case, backend, table[case, benchmark.name, backend], len(measured))
        for case in names[1]
        for benchmark in benchmarks
        for backend in names[0]
        if (case, benchmark.name, backend) in table
    ]
    told = [_facts(facts / f"{commit.short}.json") for commit in measured]
    written = {each.commit_hash: each.params for each in results}
    processors = [
        _processor(each.get("processor", {})) or written[commit.hash].get("cpu", "")
        for each, commit in zip(told, measured, strict=True)
    ]
    versions = told[-1].get("versions", {}) if told else {}
    return Machine(name, tuple(measured), tuple(series), tuple(processors), versions)


def _series(benchmark: Benchmark, case: str, backend: str, cells: Mapping[int, float | None], length: int) -> Series:
    failed = frozenset(at for at, value in cells.items() if value is None)
    return Series(benchmark, case, backend, tuple(map(cells.get, range(length))), failed)


def _facts(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def _processor(told: Mapping[str, Any]) -> str:
    words = [told.get("model", ""), f"{told['cores']} cores" if "cores" in told else "", " ".join(told.get("flags", []))]
    return ", ".join(filter(None, [*words, told.get("system", "")]))
