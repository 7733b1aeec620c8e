"""Render the report as one HTML file that opens offline."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, count
from pathlib import Path
from typing import Any

from mha_core.cli.offline import render
from mha_core.shared import atomic_file

from .changes import RULES, TIMES, Change, beyond_rule, judged, latest, rule
from .figures import Style, figure, hovers, styles_of
from .series import Benchmark, History, Machine, Series
from .units import shown


@dataclass(frozen=True)
class Cell:
    """One cell of a table."""

    text: str
    """The value; empty for a gap."""
    note: str = ""
    """The reason for a gap, or the older commit that the value comes from."""
    best: bool = False
    """True if it is the best of its case and benchmark."""


def write(history: History, output: Path) -> None:
    """Write the page. An existing file is replaced only when the new page is complete."""
    output.parent.mkdir(parents=True, exist_ok=True)
    with atomic_file(output) as file:
        file.write(rendered(history).encode("utf-8"))


def rendered(history: History) -> str:
    """Return the page's HTML."""
    styles = styles_of(history.backends)
    anchors = _anchors([machine.name for machine in history.machines])
    sections = [_section(history, machine, anchors[machine.name], styles) for machine in history.machines]
    return render(
        Path(__file__).parent,
        history=history,
        sections=sections,
        styles=styles,
        data={each["anchor"]: each["data"] for each in sections},
        shown=shown,
        costs=any(benchmark.unit == "x" for machine in history.machines for benchmark in machine.benchmarks),
        rules=RULES,
        times=TIMES,
    )


def _section(history: History, machine: Machine, anchor: str, styles: Mapping[str, Style]) -> dict[str, Any]:
    """Return what the template shows of a machine."""
    verdicts = [(series, judged(series, machine)) for series in machine.series]
    changes = [change for _, verdict in verdicts for change in verdict.changes]
    newest = [change for series in machine.series if (change := latest(series, machine))]
    here = [name for name in history.backends if any(each.backend == name for each in machine.series)]
    anchors = _anchors(machine.cases, f"{anchor}--")
    figures = {anchors[case]: figure(machine, case, styles, changes) for case in machine.cases}
    return {
        "anchor": anchor,
        "machine": machine,
        "tables": _tables(machine, here),
        "newest": sorted(filter(beyond_rule, newest), key=_size, reverse=True),
        "compared": len(newest),
        "worse": {name: _of(name, [each for each in changes if each.worse]) for name in here},
        "better": {name: _of(name, [each for each in changes if not each.worse]) for name in here},
        "unjudged": Counter(verdict.why_not for _, verdict in verdicts if verdict.why_not).most_common(),
        "anchors": anchors,
        "data": {"hovers": hovers(machine), "figures": figures, "since": _since(machine, anchors)},
    }


def _of(backend: str, changes: Sequence[Change]) -> list[Change]:
    return sorted((each for each in changes if each.series.backend == backend), key=_size, reverse=True)


def _size(change: Change) -> float:
    """Return a factor above 1, the greater the change."""
    return float("inf") if not change.factor or change.factor < 0 else max(change.factor, 1 / change.factor)


def _since(machine: Machine, anchors: Mapping[str, str]) -> dict[str, Any]:
    """Return the lines from which the page finds what became worse since a date."""
    names = list(dict.fromkeys(machine.processors_of(benchmark) for benchmark in machine.benchmarks))
    lines = [
        {
            "anchor": anchors[each.case],
            "name": [each.case, each.backend, each.benchmark.title],
            "values": each.values,
            "tolerance": rule(each).tolerance,
            "smallest": rule(each).smallest,
            "processors": names.index(machine.processors_of(each.benchmark)),
        }
        for each in machine.series
    ]
    return {"dates": [commit.date for commit in machine.commits], "processors": names, "lines": lines}


def _tables(machine: Machine, backends: Sequence[str]) -> list[dict[str, Any]]:
    """Return a table of the newest values of each benchmark; side by side they fill a wide window, each fits a narrow one."""
    series = {(each.case, each.benchmark, each.backend): each for each in machine.series}
    tables = []
    for benchmark in machine.benchmarks:
        names = [name for name in backends if any((case, benchmark, name) in series for case in machine.cases)]
        rows = {case: [series.get((case, benchmark, name)) for name in names] for case in machine.cases}
        cells = {case: _cells(machine, benchmark, row) for case, row in rows.items() if any(row)}
        tables.append({"benchmark": benchmark, "backends": names, "cells": cells})
    return tables


def _cells(machine: Machine, benchmark: Benchmark, row: Sequence[Series | None]) -> list[Cell]:
    """Return the newest value of each backend in one case and benchmark, with the best marked."""
    newest = [None if each is None or each.newest is None else (each.newest, each.values[each.newest]) for each in row]
    values = [each[1] for each in newest if each is not None and each[1] is not None]
    best = shown(min(values), benchmark.unit) if len(values) > 1 else None
    cells = []
    for each in newest:
        if each is None:
            cells.append(Cell("", "not measured"))
            continue
        (place, value), last = each, len(machine.commits) - 1
        when = f"{machine.commits[place].short}, {machine.commits[place].date}"
        if value is None:
            cells.append(Cell("", f"failed at {when}"))
        else:
            text = shown(value, benchmark.unit)
            cells.append(Cell(text, "" if place == last else f"from an older commit: {when}", text == best))
    return cells


def _anchors(names: Sequence[str], prefix: str = "") -> dict[str, str]:
    """Return a unique HTML id for each name."""
    ids: dict[str, str] = {}
    for name in names:
        base = prefix + re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
        numbered = (f"{base}-{number}" for number in count(2))
        ids[name] = next(anchor for anchor in chain([base], numbered) if anchor not in ids.values())
    return ids
