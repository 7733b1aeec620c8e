"""Measure commits with asv on every usable backend, and record the machine and versions."""

from __future__ import annotations

import math
import os
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from asv.commands.run import Run
from asv.results import iter_results_for_machine

from mha_conformance.bench.limits import COPY, MATRIX, measured
from mha_conformance.bench.machine import processor, versions
from mha_conformance.bench.rounds import QUICK
from mha_conformance.bench.worker import Worker
from mha_conformance.history.results import cells
from mha_core.cli.probe import report

from .project import MACHINES, Refused, configuration, write_facts


@dataclass(frozen=True)
class Choice:
    """A choice of benchmarks."""

    backends: Sequence[str]
    benchmark: str = ""
    """Word that the benchmark's name must contain."""
    case: str = ""
    """Word that the case must contain."""

    def pattern(self) -> str:
        """Return the regular expression by which asv selects benchmarks; those of instructions are counted without asv."""
        names = "|".join(map(re.escape, self.backends))
        return rf"(?i)^(?!instructions\.).*{re.escape(self.benchmark)}.*\('({names})', '.*{re.escape(self.case)}"

    def takes(self, benchmark: str, backend: str, case: str) -> bool:
        """Return True if a benchmark is chosen."""
        return backend in self.backends and self.benchmark.lower() in benchmark.lower() and self.case.lower() in case.lower()


@cache
def ready() -> dict[str, Any]:
    """Return library versions and devices of each backend whose library and device are available."""
    rows = [row for row in report() if row["state"] == "ready"]
    return {row["name"]: {"libraries": row["libraries"], "devices": row["devices"]} for row in rows}


def measure(commit: str, machine: str, choice: Choice) -> bool:
    """Measure a commit, and write asv's results and the facts that they depend on.

    Returns False if a benchmark failed. Raises Refused.
    """
    status = run(commit, machine, choice)
    if status == 1:  # 2 if some benchmark failed
        raise Refused(
            f"asv ran no benchmark of {commit[:8]}: none has these words in its name, or the commit cannot be installed"
        )
    rates = measured(["numpy"], QUICK, {MATRIX, COPY}, Worker)["numpy"]  # operations, and bytes, per second
    known = {"processor": processor(), "rates": rates, "versions": libraries(), "backends": ready()}
    write_facts(commit, machine, known)
    return not status


def libraries() -> dict[str, str]:
    """Return the versions of Python and of the libraries, without those of this project."""
    return {name: version for name, version in versions().items() if name not in ("commit", "mha-core")}


def run(commit: str, machine: str, choice: Choice, *, quick: bool = False, results: Path | None = None) -> int:
    """Run ``asv run`` and return its exit status."""
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


def once(commit: str, choice: Choice, results: Path) -> list[str]:
    """Run every chosen benchmark once, and return a line for each failure and each backend that was not measured.

    The cases run on their small problems.
    """
    os.environ["MHA_BENCH_CHECK"] = "1"  # read by mha_conformance.bench.asv
    shutil.rmtree(results, ignore_errors=True)
    status = run(commit, "local", choice, quick=True, results=results)
    wrong = [f"asv ended with status {status}"] if status else []
    measurements = list(iter_results_for_machine(str(results), "local"))
    every = {cell[:3]: cell.value for result in measurements for cell in cells(result) if choice.takes(*cell[:3])}
    wrong += [f"{', '.join(name)}: {gap(value)}" for name, value in every.items() if gap(value)]
    seen = {backend for (_, backend, _), value in every.items() if not gap(value)}
    return wrong + [f"no benchmark measured {backend}" for backend in choice.backends if backend not in seen]


def gap(value: float | None) -> str:
    """Return why there is no value; empty if there is one."""
    return "failed" if value is None else "skipped" if math.isnan(value) else ""
