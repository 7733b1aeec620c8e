"""Commits measured on every backend that can be used, and the facts that their results depend on."""

from __future__ import annotations

import json
import math
import re
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

from asv.commands.run import Run
from asv.results import Results, iter_results_for_machine

from mha_core.bench.machine import processor, versions
from mha_core.cli.backends import report

from .commits import changed_code, next_missing
from .project import FACTS, MACHINES, configuration


class NothingMeasured(RuntimeError):
    """asv began nothing."""


@dataclass(frozen=True)
class Choice:
    """Which benchmarks: those of these backends, whose own name and case hold the words."""

    backends: Sequence[str]
    benchmark: str = ""
    case: str = ""

    def pattern(self) -> str:
        """What asv chooses by."""
        names = "|".join(map(re.escape, self.backends))
        return rf"(?i){re.escape(self.benchmark)}.*\('({names})', '.*{re.escape(self.case)}"

    def takes(self, benchmark: str, backend: str, case: str) -> bool:
        return backend in self.backends and self.benchmark.lower() in benchmark.lower() and self.case.lower() in case.lower()


@cache
def ready() -> dict[str, Any]:
    """The installed backends whose library and device are there: for each its libraries' versions, and its devices."""
    rows = [row for row in report() if row["state"] == "ready"]
    return {row["name"]: {"libraries": row["libraries"], "devices": row["devices"]} for row in rows}


def measure(commit: str, machine: str, choice: Choice) -> bool:
    """Results of asv, and facts beside them; False where some benchmark failed. Raises NothingMeasured."""
    status = run(commit, machine, choice)
    if status == 1:  # 2 where some benchmark failed
        raise NothingMeasured(f"asv measured nothing of {commit[:8]}: no benchmark has these words, or it cannot be installed")
    _write_facts(FACTS / machine / f"{commit[:8]}.json", choice)
    return not status


def run(commit: str, machine: str, choice: Choice, *, quick: bool = False, results: Path | None = None) -> int:
    """The exit status of ``asv run``."""
    status = Run.run(
        configuration(results),
        range_spec=[commit],
        bench=[choice.pattern()],
        show_stderr=True,
        quick=quick,
        machine=machine,
        _machine_file=str(MACHINES),
    )
    return int(status or 0)


def fill(machine: str, backends: Sequence[str], minutes: float) -> Iterator[tuple[str, bool]]:
    """Measure what is missing of the history, one commit after another, none begun after so many minutes.

    Yields each commit, and whether all of its benchmarks could be measured. Raises NothingMeasured.
    """
    history, end = changed_code(), time.monotonic() + 60 * minutes
    while time.monotonic() < end:
        commit = next_missing(history, measured(history, machine, backends))
        if commit is None:
            return
        yield commit, measure(commit, machine, Choice(backends))


def measured(history: Sequence[str], machine: str, backends: Sequence[str]) -> set[str]:
    """The commits of which every benchmark was tried on these backends."""
    return {commit for commit in history if set(backends) <= set(_facts(FACTS / machine / f"{commit[:8]}.json")["whole"])}


def once(commit: str, choice: Choice, results: Path) -> list[str]:
    """Every chosen benchmark run once, nothing of it kept: what is wrong, a line each, with a backend that was not there."""
    shutil.rmtree(results, ignore_errors=True)
    status = run(commit, "local", choice, quick=True, results=results)
    wrong = [f"asv ended with status {status}"] if status else []
    found = list(iter_results_for_machine(str(results), "local"))
    every = {name: value for result in found for name, value in cells(result) if choice.takes(*name)}
    wrong += [f"{', '.join(name)}: {gap(value)}" for name, value in every.items() if gap(value)]
    there = {name[1] for name, value in every.items() if not gap(value)}
    return wrong + [f"no benchmark measured {backend}" for backend in choice.backends if backend not in there]


def gap(value: float | None) -> str:
    """Why there is no value, where there is none."""
    return "failed" if value is None else "left out" if math.isnan(value) else ""


def cells(result: Results) -> Iterator[tuple[tuple[str, str, str], float | None]]:
    """Each benchmark, backend and case of a file of results with its value: None where it failed, NaN where it was left out."""
    for name in result.get_all_result_keys():
        params = result.get_result_params(name)
        values = result.get_result_value(name, params)
        for (backend, case), value in zip(product(*params), values, strict=True):
            yield (name, backend.strip("'"), case.strip("'")), value


def _facts(path: Path) -> dict[str, Any]:
    """Those of a commit; "whole" are the backends on which every benchmark was tried."""
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return {"whole": []} | found


def _write_facts(path: Path, choice: Choice) -> None:
    libraries = {name: version for name, version in versions().items() if name not in ("commit", "mha-core")}
    whole = set(_facts(path)["whole"]) | ({*choice.backends} if not choice.benchmark and not choice.case else set())
    facts = {"processor": processor(), "versions": libraries, "backends": ready(), "whole": sorted(whole)}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
