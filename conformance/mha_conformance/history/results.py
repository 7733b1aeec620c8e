"""Read asv's results: series of values, and the commits that they belong to."""

from __future__ import annotations

import ast
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
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
    """A folder with results, and the commits of the repository that it belongs to."""

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

    A folder may also be one of results alone, from another machine or project. Commits that none of the repositories has are
    then in the order of their dates.

    As in asv itself, a value counts only if its benchmark still exists in the same version. Backends and cases are taken from
    the results, because benchmarks.json lists only those of the environment that wrote it last.

    Raises NoHistory if there is no value, Refused, and asv's UserError for a file that asv cannot read.
    """
    sources = [_source(folder) for folder in folders]
    known = {commit.hash: commit for source in sources for commit in source.commits}
    machines: list[Machine] = []
    backends: dict[str, None] = {}
    unrelated: set[str] = set()
    for source in sources:
        label = f"{{}}, {source.project}" if len(sources) > 1 else "{}"
        for machine in _machines(source, known, label, backends, unrelated):
            machines.append(machine)
    if not machines:
        places = ", ".join(str(source.results) for source in sources)
        raise NoHistory(f"no result in {places} belongs to a benchmark and a commit of this branch")
    with_values = {each.backend for machine in machines for each in machine.series}
    return History(sources[0].project, tuple(machines), tuple(filter(with_values.__contains__, backends)), len(unrelated))


def _source(folder: Path) -> _Source:
    """Read asv's configuration, and list the commits, if the folder has one. Raises NoHistory if there are no results."""
    folder = folder.resolve()
    if (folder / CONFIGURATION).is_file():
        conf = Config.load(str(folder / CONFIGURATION))
        results, root = folder / conf.results_dir, folder / conf.repo
        _check(results)
        try:
            return _Source(conf.project, results, tuple(commits(root, getattr(conf, "code_paths", ["."]))))
        except Refused as error:
            raise NoHistory(f"git cannot list the commits of {root}: {error}") from error
    if not (folder / LIST).is_file():
        raise NoHistory(f"{folder} has neither {CONFIGURATION} nor {LIST}; give a folder with asv's configuration or results")
    return _Source((folder.parent if folder.name == "results" else folder).name, folder, ())


def _check(results: Path) -> None:
    if not (results / LIST).is_file():
        raise NoHistory(f"no results in {results}, which has no {LIST}: `asv run` writes it")


def _machines(
    source: _Source, known: Mapping[str, Commit], label: str, backends: dict[str, None], unrelated: set[str]
) -> Iterator[Machine]:
    """Yield the machines of a folder that have values; adds to the backends, and to the commits that are on no branch."""
    benchmarks_of = Benchmarks.load(source.configuration)
    benchmarks = _benchmarks(benchmarks_of)
    by_machine: dict[str, list[Results]] = {}
    for folder, name, machine in sorted(iter_results_paths(str(source.results))):
        by_machine.setdefault(machine, []).append(Results.load(str(Path(folder) / name), machine_name=machine))
    usable: dict[str, tuple[dict[str, Commit], list[Results]]] = {}
    for machine, everything in by_machine.items():
        hashes = {each.commit_hash for each in everything}
        line = known if source.commits or hashes & known.keys() else _by_date(everything)
        unrelated |= hashes - line.keys()
        here = [each for each in everything if each.commit_hash in line and each.get_result_keys(benchmarks_of)]
        if here:
            usable[machine] = dict(line), here
    # the order of benchmarks.json, then that of the results
    params = [benchmarks_of[benchmark.name]["params"] for benchmark in benchmarks]
    for _, here in usable.values():
        params += [each.get_result_params(name) for each in here for name in sorted(each.get_result_keys(benchmarks_of))]
    named = [pair for words in params for pair in map(_named, product(*words))]
    backends |= dict.fromkeys(backend for backend, _ in named)
    order = list(product(dict.fromkeys(case for _, case in named), benchmarks, dict.fromkeys(name for name, _ in named)))
    for machine, (line, here) in sorted(usable.items()):
        read = _machine(label.format(machine), here, benchmarks_of, line, order, source.results.parent / "facts" / machine)
        if read.series:
            yield read


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
    known_facts = [_facts(commit, folder) for commit in measured]
    python = {each.commit_hash: each.params.get("python", "") for each in results}
    versions = [
        facts.get("versions", {}) or {"python": python[at.hash]} for facts, at in zip(known_facts, measured, strict=True)
    ]
    ahead = max(commit.place for commit in commits.values()) - measured[-1].place
    processors, counters = map(_processor, known_facts), map(_counter, versions)
    return Machine(name, tuple(measured), tuple(series), tuple(processors), tuple(counters), versions[-1], ahead)


def _facts(commit: Commit, folder: Path) -> dict[str, Any]:
    """Return what was written about a commit beside asv's results; {} if nothing was."""
    path = folder / f"{commit.short}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def _processor(facts: Mapping[str, Any]) -> str:
    """Return a processor in words; "" if the facts lack its family, because the name alone fits several generations."""
    return described(facts["processor"]) if "family" in facts.get("processor", {}) else ""


def _counter(versions: Mapping[str, str]) -> str:
    """Return what instructions are counted with, in words: the counts of other libraries differ."""
    of = {name: versions[name] for name in ("valgrind", "python", "numpy", "torch") if versions.get(name)}
    return ", ".join(filter(None, ("valgrind's processor", listed(of))))
