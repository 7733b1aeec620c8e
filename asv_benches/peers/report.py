"""Results as a table for the terminal, as a page with a picture, and as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.table import Table

import reports
from mha_conformance.bench.limits import COPY, MATRIX
from mha_conformance.bench.machine import described
from mha_conformance.bench.rounds import Ratio
from mha_conformance.bench.timing import duration

from . import chart
from .measure import Row

FORMAT = 1
"""Version of the JSON; it changes when a key is removed or changes its meaning."""

HEADING = ("case", "peer", "backend", "goal", "ratio", "quartiles", "verdict", "time", "peer's time", "share of limit")
LEFT = 3  # leading columns of text; the others are numbers
STYLES = {"met": "green", "missed": "yellow", "wrong": "bold red"}


def cells(row: Row) -> tuple[str, ...]:
    """Return the text of a row's cells, under HEADING."""
    goal = "" if row.goal is None else f"{row.goal:.2f}"
    if row.ratio is None or row.seconds is None or row.peer_seconds is None:
        return (row.case, row.peer, row.backend, goal, "", "", row.verdict, "", "", "")
    return (
        row.case,
        row.peer,
        row.backend,
        goal,
        f"{row.ratio.median:.2f}",
        f"{row.ratio.low:.2f} to {row.ratio.high:.2f}",
        row.verdict,
        duration(row.seconds),
        duration(row.peer_seconds),
        "" if row.reached is None else f"{row.reached:.0%}{' (copy)' * (row.of == COPY)}",
    )


def table(rows: Sequence[Row]) -> Table:
    """Return the table for the terminal."""
    shown = Table(title="time relative to the peer")
    for at, name in enumerate(HEADING):
        shown.add_column(name, justify="left" if at < LEFT else "right", overflow="fold")
    for row in rows:
        style = STYLES.get(row.verdict.partition(" ")[0], "")
        shown.add_row(*cells(row), style=style)
    return shown


def record(rows: Sequence[Row], rates: Mapping[str, float], command: str) -> dict[str, Any]:
    """Return the table and what its figures depend on, for JSON."""
    return {
        "format": FORMAT,
        "command": command,
        **reports.origin(),
        "limits": {kind: float(f"{rate:.4g}") for kind, rate in rates.items()},
        "rows": [asdict(row) | {"verdict": row.verdict} for row in rows],
    }


def markdown(rows: Sequence[Row], results: Mapping[str, Any], picture: str) -> str:
    """Return the page: what the figures depend on, the picture, the ratios, and the times."""
    return reports.page(
        f"Benchmarks against other libraries: {named(results['machine'])}",
        reports.measured_on(results, results["command"]),
        *reading(results["limits"]),
        f"![The ratio, the goal and the limit of each backend in each case; the tables have the numbers]({picture})",
        "## Ratios to other libraries",
        "Goals are in parentheses: the greatest ratio that meets them. A ratio that misses its goal is bold.",
        *_ratios(rows),
        "## Times",
        reports.table(("case", "backend", "quartiles", "time", "other's time", "of the limit"), map(_times, rows), left=2),
        *_cosines(rows),
        *(f"{row.case}, {row.backend}: {row.wrong}" for row in rows if row.wrong),
    )


def named(processor: Mapping[str, Any]) -> str:
    """Return a processor's name and numbers."""
    return described({key: processor[key] for key in ("model", "family", "number") if key in processor})


def _cosines(rows: Sequence[Row]) -> Iterator[str]:
    """Yield a table of the smallest cosines of vectors to those in float64, if any were computed."""
    cosines: dict[tuple[str, str], float | None] = {}
    for row in rows:
        cosines |= {(row.case, row.peer): row.peer_cosine, (row.case, row.backend): row.cosine}
    lines = [(*names, f"{cosine:.5f}") for names, cosine in sorted(cosines.items()) if cosine is not None]
    if lines:
        yield "## Smallest cosine of a text's vector to the exact one"
        yield reports.table(("case", "backend or other library", "cosine"), lines, left=2)


def _ratios(rows: Sequence[Row]) -> Iterator[str]:
    """Yield tables that a phone can show, and what they are of: backends alone, then with each level of the compiled plugin."""
    backends = dict.fromkeys(row.backend for row in rows)
    for level in dict.fromkeys(name.partition("+")[2] for name in backends):
        names = [name for name in backends if name.partition("+")[2] == level]
        yield f"### With mha-{level}" if level else "### Backends alone"
        yield _table_of_ratios([row for row in rows if row.backend in names], names)


def _table_of_ratios(rows: Sequence[Row], backends: Sequence[str]) -> str:
    """Return a table with a line for each case and a column for each backend."""
    cases: dict[tuple[str, str], dict[str, str]] = {(row.case, row.peer): {} for row in rows}
    for row in rows:
        goal = "" if row.goal is None else f" ({row.goal:.2f})"
        ratio = row.verdict if row.ratio is None else f"{row.ratio.median:.2f}{goal}"
        cases[row.case, row.peer][row.backend] = f"**{ratio}**" if row.verdict.startswith("missed") else ratio
    lines = [
        (f"{case},<br>{peer}", *(by_backend.get(name, "") for name in backends)) for (case, peer), by_backend in cases.items()
    ]
    return reports.table(("case, and the other library", *(name.partition("+")[0] for name in backends)), lines, left=1)


def _times(row: Row) -> tuple[str, ...]:
    case, _, backend, _, _, quartiles, _, time, peer_time, reached = cells(row)
    return case, backend, quartiles, time, peer_time, reached


def reading(rates: Mapping[str, float]) -> list[str]:
    """Return paragraphs that explain the figures."""
    ratio = (
        "The ratio is mha-core's time divided by the other library's: the median over rounds, with its quartiles. Each runs in "
        "its own process, and all take one turn per round; several sets of processes (with `--quick`, one) share the rounds. "
        "Every answer was checked against float64 before it was timed."
    )
    if not rates:
        return [ratio]
    limit = (
        "The limit is the fastest float32 matrix product of NumPy, torch and mha-core on torch, "
        f"{rates[MATRIX] / 1e9:.0f} GFLOP/s; only products are counted. No goal in float32 is above this rate. For work that "
        f"reads more than it computes, marked (copy), it is their fastest copy, {rates[COPY] / 1e9:.0f} GB/s read and written."
    )
    return [ratio, limit]


def draw(stem: Path, rows: Sequence[Row], results: Mapping[str, Any]) -> None:
    """Write STEM.md with its picture STEM.svg, and the results to STEM.json."""
    picture = stem.with_suffix(".svg")
    reports.write(stem, results, markdown(rows, results, picture.name))
    picture.write_text(chart.svg(rows), encoding="utf-8")


def read(file: Path) -> tuple[list[Row], dict[str, Any]]:
    """Return the rows of a STEM.json, and all that it holds. Raises ValueError for another format."""
    results = json.loads(file.read_text(encoding="utf-8"))
    if not isinstance(results, dict) or results.get("format") != FORMAT:
        raise ValueError(f"{file} is not a report of format {FORMAT}")
    rows = []
    for each in results["rows"]:
        fields = {name: value for name, value in each.items() if name != "verdict"}
        rows.append(Row(**fields | {"ratio": None if fields["ratio"] is None else Ratio(**fields["ratio"])}))
    return rows, results
