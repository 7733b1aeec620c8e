"""Read asv's results as series: a value per commit for each benchmark, case and backend."""

from __future__ import annotations

import ast
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate, chain, product, repeat
from pathlib import Path
from typing import Any, NamedTuple

from asv.benchmarks import Benchmarks
from asv.config import Config
from asv.results import Results, iter_results_paths

import reports

from .project import Refused, changed_code, facts, git

UNITS = ("instructions", "cycles", "seconds", "x", "bytes")
"""Order of the benchmarks: counts, time, cost, memory."""

ANY = "any processor"
MEASURE = "`make bench` measures this commit, `make bench-history` those before it"


class NoHistory(LookupError):
    """There are no results to show."""


@dataclass(frozen=True)
class Commit:
    """A commit of HEAD's first parents."""

    hash: str
    date: str
    subject: str
    code: bool
    """True if it changed code."""
    place: int
    """Position on the branch, counted from 0 over commits that changed code, measured or not."""

    @property
    def short(self) -> str:
        """The first eight letters of the hash."""
        return self.hash[:8]


@dataclass(frozen=True)
class Benchmark:
    """One benchmark, on all backends and cases."""

    name: str
    title: str
    """Its `pretty_name`, shown to readers."""
    unit: str


@dataclass(frozen=True)
class Series:
    """The values of one benchmark in one case on one backend."""

    benchmark: Benchmark
    case: str
    backend: str
    values: tuple[float | None, ...]
    """A value for each commit of the machine; None is a gap."""
    failed: frozenset[int]
    """Indices of the gaps where the benchmark failed."""

    @property
    def newest(self) -> int | None:
        """Index of the last commit at which the benchmark was run; None if it was never run."""
        tried = [at for at, value in enumerate(self.values) if value is not None or at in self.failed]
        return tried[-1] if tried else None


@dataclass(frozen=True)
class Machine:
    """The results of one machine."""

    name: str
    commits: tuple[Commit, ...]
    """Commits measured on this machine, oldest first."""
    series: tuple[Series, ...]
    processors: tuple[str, ...]
    """The processor at each commit, in words that tell it from others; empty if it is not known so well."""
    versions: Mapping[str, str]
    """Library versions at the newest commit."""
    ahead: int = 0
    """Number of commits after the newest one that changed code."""

    @property
    def benchmarks(self) -> tuple[Benchmark, ...]:
        """Benchmarks in order of first appearance."""
        return tuple(dict.fromkeys(each.benchmark for each in self.series))

    def processors_of(self, benchmark: Benchmark) -> tuple[str, ...]:
        """Return the processor that the values of a benchmark depend on: those of memory depend on none."""
        return (ANY,) * len(self.commits) if benchmark.unit == "bytes" else self.processors

    @property
    def cases(self) -> tuple[str, ...]:
        """Cases in order of first appearance."""
        return tuple(dict.fromkeys(each.case for each in self.series))


@dataclass(frozen=True)
class History:
    """All results of the branch."""

    project: str
    machines: tuple[Machine, ...]
    backends: tuple[str, ...]
    """Backends of all machines, in one order."""
    unrelated: int
    """Number of measured commits that are not on this branch."""


def read(config: Path) -> History:
    """Return what asv has measured at HEAD and its first parents.

    As in asv itself, a value counts only if its benchmark still exists in the same version. Backends and cases are taken from
    the results, because benchmarks.json lists only those of the environment that wrote it last.

    Raises NoHistory if there is no value, Refused, and asv's UserError for a file that asv cannot read.
    """
    conf = Config.load(str(config))
    root = config.resolve().parent
    conf.results_dir = str(root / conf.results_dir)
    paths = sorted(iter_results_paths(conf.results_dir)) if Path(conf.results_dir).is_dir() else []
    if not paths:
        raise NoHistory(f"no results in {conf.results_dir}: {MEASURE}")
    known = Benchmarks.load(conf)
    benchmarks = _benchmarks(known)
    commits = {commit.hash: commit for commit in _commits(root / conf.repo)}
    by_machine: dict[str, list[Results]] = {}
    unrelated = set()
    for folder, name, machine in paths:
        results = Results.load(str(Path(folder) / name), machine_name=machine)
        if results.commit_hash not in commits:
            unrelated.add(results.commit_hash)
        elif results.get_result_keys(known):
            by_machine.setdefault(machine, []).append(results)
    # the order of benchmarks.json, then that of the results
    params = [known[benchmark.name]["params"] for benchmark in benchmarks]
    params += [
        each.get_result_params(name) for each in chain(*by_machine.values()) for name in sorted(each.get_result_keys(known))
    ]
    named = [pair for words in params for pair in map(_named, product(*words))]
    backends, cases = (list(dict.fromkeys(pair[at] for pair in named)) for at in (0, 1))
    order = list(product(cases, benchmarks, backends))
    machines = [_machine(name, by_machine[name], known, commits, order, root / "facts" / name) for name in sorted(by_machine)]
    measured = tuple(machine for machine in machines if machine.series)
    if not measured:
        raise NoHistory(f"no result in {conf.results_dir} belongs to a benchmark and a commit of this branch: {MEASURE}")
    with_values = {each.backend for machine in measured for each in machine.series}
    return History(conf.project, measured, tuple(name for name in backends if name in with_values), len(unrelated))


def _commits(repo: Path) -> list[Commit]:
    """Return HEAD's first parents, oldest first; if none of them changed code as this project has it, all count as such."""
    try:
        listed = git("log", "--first-parent", "--reverse", "--format=%H%x1f%cs%x1f%s", "HEAD", root=repo)
    except Refused as error:
        raise NoHistory(f"git cannot list the commits of {repo}: {error}") from error
    lines = [line.split("\x1f", 2) for line in listed.split("\n")]
    code = set(changed_code(root=repo)) or {line[0] for line in lines}
    _, *places = accumulate((line[0] in code for line in lines), initial=-1)
    return [Commit(*line, line[0] in code, place) for line, place in zip(lines, places, strict=True)]


class Cell(NamedTuple):
    """The result of a benchmark in one case on one backend."""

    benchmark: str
    backend: str
    case: str
    value: float | None
    """None if the benchmark failed, NaN if it was skipped."""
    stats: dict[str, float] | None
    """Input of asv's statistics, with ``samples``."""
    samples: list[float] | None


def cells(results: Results, benchmark: str = "") -> Iterator[Cell]:
    """Yield the results of one benchmark, or of all, that asv has of a commit."""
    for name in [benchmark] if benchmark else results.get_all_result_keys():
        params = results.get_result_params(name)
        read = results.get_result_value, results.get_result_stats, results.get_result_samples
        columns = [column(name, params) or repeat(None) for column in read]
        for names, *figures in zip(product(*params), *columns, strict=False):
            yield Cell(name, *_named(names), *figures)


def _benchmarks(known: Mapping[str, Any]) -> list[Benchmark]:
    """Return the benchmarks, those with the most cases first."""
    for name, each in known.items():
        first = next(iter(each["param_names"]), "missing")
        if first != "backend":
            raise Refused(f"the first parameter of {name} is {first}; expected backend")

    def order(benchmark: Benchmark) -> tuple[int, int, str]:
        unit = UNITS.index(benchmark.unit) if benchmark.unit in UNITS else len(UNITS)
        return -len(list(product(*known[benchmark.name]["params"][1:]))), unit, benchmark.name

    return sorted((Benchmark(name, each.get("pretty_name") or name, each["unit"]) for name, each in known.items()), key=order)


def _named(params: tuple[str, ...]) -> tuple[str, str]:
    """Return backend and case of one combination of parameters, which asv stores as repr writes them."""
    backend, *case = (str(ast.literal_eval(text)) if text[:1] in {"'", '"'} else text for text in params)
    return backend, ", ".join(case)


def _machine(
    name: str,
    results: list[Results],
    known: Mapping[str, Any],
    commits: Mapping[str, Commit],
    order: Iterable[tuple[str, Benchmark, str]],
    folder: Path,
) -> Machine:
    """Return the series of a machine in this order of (case, benchmark, backend); ``folder`` has its facts."""
    hashes = {each.commit_hash for each in results}
    measured = [commit for commit in commits.values() if commit.hash in hashes]
    position = {commit.hash: at for at, commit in enumerate(measured)}
    table: dict[tuple[str, str, str], dict[int, float | None]] = {}
    runs = [(each.started_at[key] or 0, key, each) for each in results for key in each.get_result_keys(known)]
    for _, key, each in sorted(runs, key=lambda run: run[0]):  # the last measurement wins
        for cell in cells(each, key):
            if cell.value is None or math.isfinite(cell.value):  # None: failed; NaN: skipped
                table.setdefault((cell.case, key, cell.backend), {})[position[each.commit_hash]] = cell.value
    series = []
    for case, benchmark, backend in order:
        if values := table.get((case, benchmark.name, backend)):
            failed = frozenset(at for at, value in values.items() if value is None)
            series.append(Series(benchmark, case, backend, tuple(map(values.get, range(len(measured)))), failed))
    known_facts = [facts(commit.hash, folder) for commit in measured]
    cpu = {each.commit_hash: each.params.get("cpu", "") for each in results}
    processors = [_processor(each, cpu[commit.hash]) for each, commit in zip(known_facts, measured, strict=True)]
    ahead = max(commit.place for commit in commits.values()) - measured[-1].place
    return Machine(name, tuple(measured), tuple(series), tuple(processors), known_facts[-1].get("versions", {}), ahead)


def _processor(facts: Mapping[str, Any], cpu: str) -> str:
    """Return a processor in words; "" if the facts lack its family, because the name alone fits several generations.

    Without a processor in the facts it is the one that asv's file names, with other libraries another: their counts differ.
    """
    if "processor" not in facts:
        versions = {name: facts.get("versions", {}).get(name) for name in ("valgrind", "python", "numpy", "torch")}
        return ", ".join(filter(None, (cpu, reports.listed({name: each for name, each in versions.items() if each}))))
    return reports.described(facts["processor"]) if "family" in facts["processor"] else ""
