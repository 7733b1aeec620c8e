"""Count the instructions of commits, and store them as asv's results of a machine named callgrind."""

from __future__ import annotations

import ast
import fcntl
import math
import os
import random
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from typing import Any

from asv.benchmarks import Benchmarks
from asv.environment import get_environments
from asv.repo import get_repo
from asv.results import Results, iter_results_for_machine
from asv.runner import BenchmarkResult
from asv.util import ProcessError, write_json

from mha_conformance.bench.instructions import callgrind
from mha_conformance.bench.instructions.cases import COUNTED
from mha_conformance.bench.instructions.count import CannotCount, Count, counts
from mha_conformance.history.results import cells

from .compiled import NATIVE, NotInstalled, plugin
from .measure import libraries
from .project import BUILD, Refused, changed_code, check_whole, configuration, next_missing, write_facts

MACHINE = "callgrind"
"""The machine of these results: valgrind's processor, which is the same everywhere."""

ABOUT = {"machine": MACHINE, "arch": "x86_64", "cpu": "valgrind's, with AVX2", "num_cpu": "1", "os": "Linux", "ram": ""}
"""What asv keeps of a machine."""

BENCHMARKS = {
    "instructions": "instructions.Instructions.track_instructions",
    "cycles": "instructions.Instructions.track_cycles",
}

Table = Mapping[str, Mapping[str, Count]]
"""Counts by backend and case."""


def counted(commit: str, backends: Sequence[str], cases: Sequence[str] = tuple(COUNTED)) -> dict[str, dict[str, Count]]:
    """Count the instructions of cases at a commit, a backend on each core.

    A backend whose name ends in NATIVE is counted with the compiled plugin. Raises CannotCount, and asv's UserError.
    """
    if why := callgrind.missing():
        raise CannotCount(why)
    source = installed(commit)
    native = plugin(commit) if any(name.endswith(NATIVE) for name in backends) else None

    def count_one(name: str) -> dict[str, Count]:
        backend = name.removesuffix(NATIVE)
        with workplace(name, source) as folder:
            plugins = [native] if native is not None and name != backend else []
            return counts(backend, cases, [folder / "source", *plugins], folder)

    # each thread keeps to one core, which the programs that it starts inherit
    cores = list(os.sched_getaffinity(0))
    random.shuffle(cores)  # for runs beside each other
    with ThreadPoolExecutor(len(cores), initializer=lambda: os.sched_setaffinity(0, {cores.pop()})) as pool:
        return dict(zip(backends, pool.map(count_one, backends), strict=True))


@contextmanager
def workplace(backend: str, source: Path) -> Iterator[Path]:
    """Yield an empty folder, the same for every commit, with a link to the commit's packages.

    A path of other letters has another hash, and so another place in a dictionary: up to 0.2% of a tiny call. Another process
    that counts on this backend is waited for.
    """
    folder = BUILD / "count" / backend
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        (folder / "source").symlink_to(source)
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def installed(commit: str) -> Path:
    """Install a commit as asv does, and return its folder. Raises NotInstalled."""
    conf, environment = configuration(), _environment()
    try:
        environment.install_project(conf, get_repo(conf), commit)
    except ProcessError as error:
        raise NotInstalled(f"{commit[:8]} cannot be installed: {error}") from error
    return environment.folder(commit).resolve()


def _environment() -> Any:
    (environment,) = get_environments(configuration(), [], verbose=False)
    environment.create()
    return environment


def count_missing(backends: Sequence[str], minutes: float) -> Iterator[tuple[str, str]]:
    """Count the commits without counts, one after another; start none after this many minutes.

    Yields each commit, and what came of it.
    """
    check_whole()
    history, end = changed_code(), time.monotonic() + 60 * minutes
    tried: set[str] = set()
    while (start := time.monotonic()) < end:
        commit = next_missing(history, counted_commits(history, backends) | tried)
        if commit is None:
            return
        tried.add(commit)
        try:
            keep(commit, counted(commit, backends))
        except NotInstalled as error:
            yield commit, str(error)
        else:
            yield commit, f"counted in {time.monotonic() - start:.0f} s"


def counted_commits(history: Sequence[str], backends: Sequence[str]) -> set[str]:
    """Return the commits that were counted on all of these backends."""
    conf, name = configuration(), BENCHMARKS["instructions"]
    if not (Path(conf.results_dir) / "benchmarks.json").exists():
        return set()
    known = Benchmarks.load(conf)
    whole = set()
    for results in iter_results_for_machine(conf.results_dir, MACHINE):
        if name in results.get_result_keys(known):  # of today's version
            values = {cell.backend for cell in cells(results, name) if cell.value is None or not math.isnan(cell.value)}
            whole |= {results.commit_hash} if values >= set(backends) else set()
    return whole & set(history)


def newest(history: Sequence[str], backends: Sequence[str]) -> str:
    """Return the newest commit of a history that was counted on all of these backends. Raises Refused if there is none."""
    counted_before = counted_commits(history, backends)
    if not counted_before:
        raise Refused(f"no commit was counted on {', '.join(backends)}; run make bench-history first, or name a commit")
    return next(commit for commit in reversed(history) if commit in counted_before)


def keep(commit: str, table: Table) -> None:
    """Add the counts of a commit to asv's results, and the benchmarks to benchmarks.json."""
    conf = configuration()
    repo = get_repo(conf)
    known = Benchmarks.discover(conf, repo, [_environment()], [commit])
    known.save()
    folder = conf.results_dir
    write_json(str(Path(folder) / MACHINE / "machine.json"), ABOUT, 1)
    before = {each.commit_hash: each for each in iter_results_for_machine(folder, MACHINE)}
    results = before.get(commit) or Results(ABOUT | {"python": ""}, {}, commit, repo.get_date(commit), "", "installed", {})
    for figure, name in BENCHMARKS.items():
        backends, cases = ([ast.literal_eval(word) for word in words] for words in known[name]["params"])
        old = {cell[1:3]: cell.value for cell in (cells(results, name) if name in results.get_result_keys(known) else ())}
        # also backends whose plugin this commit cannot load, and those with the compiled plugin
        backends = list(dict.fromkeys([*backends, *table, *(backend for backend, _ in old)]))
        benchmark = known[name] | {"params": [list(map(repr, words)) for words in (backends, cases)]}
        values = [
            _value(table[backend].get(case), figure) if backend in table else old.get((backend, case), math.nan)
            for backend, case in product(backends, cases)
        ]
        nothing = [None] * len(values)
        outcome = BenchmarkResult(values, nothing, nothing, 0, "", None)
        results.add_result(benchmark, outcome, started_at=datetime.now(UTC))
    results.save(folder)
    write_facts(commit, MACHINE, {"versions": libraries() | {"valgrind": callgrind.version()}})


def _value(count: Count | None, figure: str) -> float | None:
    """Return a figure as asv keeps it: NaN if skipped, None if failed."""
    if count is None or count.skipped:
        return math.nan
    value: float | None = getattr(count, figure)
    return value
