"""Read asv's results: series of values, and the commits that they belong to."""

from __future__ import annotations

import ast
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import product, repeat
from pathlib import Path
from typing import Any, NamedTuple

from asv.benchmarks import Benchmarks
from asv.config import Config
from asv.results import Results, iter_results_paths

from ..bench.machine import described, listed
from .repository import Commit, Refused, commits
from .series import Benchmark, History, Machine, Series

UNITS = ("instructions", "cycles", "seconds", "x", "bytes")
"""Order of the benchmarks: counts, time, cost, memory."""

CONFIGURATION, LIST = "asv.conf.json", "benchmarks.json"
"""The files of asv that name the folder of results, and describe the benchmarks in it."""


class NoHistory(LookupError):
    """There are no results to show."""


@dataclass(frozen=True)
class _Source:
    """A folder of results, and the commits of the repository that it belongs to; none if it has results alone."""

    project: str
    results: Path
    commits: tuple[Commit, ...]

    @property
    def configuration(self) -> Config:
        conf = Config()
        conf.results_dir = str(self.results)
        return conf


def read(folders: Sequence[Path]) -> History:
    """Return what asv has measured: in folders with asv's configuration, at HEAD and its first parents.

    A folder may also have results alone, of another machine or project. Its commits are looked up in the repositories of the
    other folders; if none of these has any of them, they are ordered by date.

    As in asv itself, a value counts only if its benchmark still exists in the same version. Backends and cases are taken from
    the results, because benchmarks.json lists only those of the environment that wrote it last.

    Raises NoHistory if there is no value, Refused, and asv's UserError for a file that asv cannot read.
    """
    sources = [_source(folder) for folder in dict.fromkeys(folder.resolve() for folder in folders)]
    machines: list[Machine] = []
    unrelated: set[str] = set()
    for source in sources:
        for machine in _machines(source, [each.commits for each in sources], unrelated):
            name = machine.name if len(sources) == 1 else f"{machine.name}, {source.project}"
            same = sum(each.name.partition(" (")[0] == name for each in machines)
            machines.append(replace(machine, name=f"{name} ({same + 1})" if same else name))
    if not machines:
        places = ", ".join(str(source.results) for source in sources)
        raise NoHistory(f"{places}: no result is of a commit of HEAD's line and of a benchmark with the parameter backend")
    backends = dict.fromkeys(each.backend for machine in machines for each in machine.series)
    return History(sources[0].project, tuple(machines), tuple(backends), len(unrelated))


def _source(folder: Path) -> _Source:
    """Read asv's configuration, and list the commits, if the folder has one. Raises NoHistory if there are no results."""
    if not (folder / CONFIGURATION).is_file():
        if not (folder / LIST).is_file():
            raise NoHistory(
                f"{folder} has neither {CONFIGURATION} nor {LIST}; give a folder that asv was run in, or its results"
            )
        return _Source((folder.parent if folder.name == "results" else folder).name, folder, ())
    try:
        conf = Config.load(str(folder / CONFIGURATION))
    except ValueError as error:
        raise Refused(f"{folder / CONFIGURATION}: {error}") from error
    results, root = folder / conf.results_dir, folder / conf.repo
    if not (results / LIST).is_file():
        raise NoHistory(f"no results in {results}, which has no {LIST}: `asv run` writes it")
    if not root.is_dir():  # asv clones it
        return _Source(conf.project, results, ())
    paths = getattr(conf, "code_paths", ["."])
    try:
        return _Source(conf.project, results, tuple(commits(root, [paths] if isinstance(paths, str) else paths)))
    except Refused as error:
        raise NoHistory(f"git cannot list the commits of {root}: {error}") from error


def _machines(source: _Source, lines: Sequence[Sequence[Commit]], unrelated: set[str]) -> Iterator[Machine]:
    """Yield the machines of a folder that have values. Adds commits to ``unrelated`` that are not on the folder's line."""
    described_by_name = Benchmarks.load(source.configuration).items()
    known = {name: each for name, each in described_by_name if each["param_names"][:1] == ["backend"]}
    benchmarks = _benchmarks(known)
    by_machine: dict[str, list[Results]] = {}
    for folder, name, machine in sorted(iter_results_paths(str(source.results))):
        by_machine.setdefault(machine, []).append(Results.load(str(Path(folder) / name), machine_name=machine))
    usable: dict[str, tuple[dict[str, Commit], list[Results]]] = {}
    for machine, results in by_machine.items():
        hashes = {each.commit_hash for each in results}
        line = {commit.hash: commit for commit in source.commits or _line(hashes, lines)} or _by_date(results)
        unrelated |= hashes - line.keys()
        on_line = [each for each in results if each.commit_hash in line and each.get_result_keys(known)]
        if on_line:
            usable[machine] = line, on_line
    # the order of benchmarks.json, then that of the results
    params = [known[benchmark.name]["params"] for benchmark in benchmarks]
    for _, results in usable.values():
        params += [each.get_result_params(name) for each in results for name in sorted(each.get_result_keys(known))]
    named = [pair for words in params for pair in map(_named, product(*words))]
    order = list(product(dict.fromkeys(case for _, case in named), benchmarks, dict.fromkeys(name for name, _ in named)))
    for name, (line, results) in sorted(usable.items()):
        measured = _machine(name, results, known, line, order, source.results.parent / "facts" / name)
        if measured.series:
            yield measured


def _line(hashes: Set[str], lines: Sequence[Sequence[Commit]]) -> Sequence[Commit]:
    """Return the line that has most of these commits; none if no line has one."""
    most = max(lines, key=lambda line: len(hashes & {commit.hash for commit in line}))
    return most if hashes & {commit.hash for commit in most} else ()


def _by_date(results: Iterable[Results]) -> dict[str, Commit]:
    """Return the commits of results by their dates, all that is known without their repository."""
    dates = sorted({(each.date, each.commit_hash) for each in results})
    days = (datetime.fromtimestamp(date / 1000, UTC).date().isoformat() for date, _ in dates)
    return {hash: Commit(hash, day, "", True, place) for place, ((_, hash), day) in enumerate(zip(dates, days, strict=True))}


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
        readers = results.get_result_value, results.get_result_stats, results.get_result_samples
        columns = [column(name, params) or repeat(None) for column in readers]
        for names, *figures in zip(product(*params), *columns, strict=False):
            yield Cell(name, *_named(names), *figures)


def _benchmarks(known: Mapping[str, Any]) -> list[Benchmark]:
    """Return the benchmarks, those with the most cases first."""

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
    known_facts = [_facts(commit, folder) for commit in measured]
    python = {each.commit_hash: {"python": each.params["python"]} for each in results if each.params.get("python")}
    versions = [facts.get("versions") or python.get(at.hash, {}) for facts, at in zip(known_facts, measured, strict=True)]
    ahead = max(commit.place for commit in commits.values()) - measured[-1].place
    processors, counters = map(_processor, known_facts), map(_counter, versions)
    return Machine(name, tuple(measured), tuple(series), tuple(processors), tuple(counters), versions[-1], ahead)


def _facts(commit: Commit, folder: Path) -> dict[str, Any]:
    """Return what was written about a commit beside asv's results; {} if nothing was. Raises Refused for a broken file."""
    path = folder / f"{commit.short}.json"
    try:
        return dict(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else {}
    except (TypeError, ValueError) as error:
        raise Refused(f"{path}: {error}") from error


def _processor(facts: Mapping[str, Any]) -> str:
    """Return a processor in words; "" if the facts lack its family, because the name alone fits several generations."""
    return described(facts["processor"]) if "family" in facts.get("processor", {}) else ""


def _counter(versions: Mapping[str, str]) -> str:
    """Return what instructions are counted with, in words: the counts of other libraries differ."""
    of = {name: versions[name] for name in ("valgrind", "python", "numpy", "torch") if versions.get(name)}
    return ", ".join(filter(None, ("valgrind's processor", listed(of))))
