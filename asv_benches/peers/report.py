"""Results as a table for the terminal, as Markdown and as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.table import Table

from mha_core.bench.limits import COPY, MATRIX
from mha_core.bench.machine import processor, versions
from mha_core.bench.timing import duration

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
    found = Table(title="time relative to the peer")
    for at, name in enumerate(HEADING):
        found.add_column(name, justify="left" if at < LEFT else "right", overflow="fold")
    for row in rows:
        style = STYLES.get(row.verdict.partition(" ")[0], "")
        found.add_row(*cells(row), style=style)
    return found


def record(rows: Sequence[Row], rates: Mapping[str, float], command: str) -> dict[str, Any]:
    """Return the table and what its figures depend on, for JSON."""
    return {
        "format": FORMAT,
        "date": datetime.now(UTC).date().isoformat(),
        "command": command,
        "machine": processor(),
        "versions": versions(),
        "limits": {kind: float(f"{rate:.4g}") for kind, rate in rates.items()},
        "rows": [asdict(row) | {"verdict": row.verdict} for row in rows],
    }


def markdown(rows: Sequence[Row], found: Mapping[str, Any]) -> str:
    """Return the page: what the figures depend on, then the table."""
    machine = found["machine"]
    rule = ["---"] * LEFT + ["---:"] * (len(HEADING) - LEFT)
    parts = [
        "# Benchmarks against other libraries",
        f"Measured on {found['date']} by `{found['command']}`: {machine['model']}, {machine['cores']} cores, "
        f"{' '.join(machine['flags'])}, {machine['system']}; "
        + ", ".join(f"{name} {version}" for name, version in found["versions"].items())
        + ".",
        *reading(found["limits"]),
        "\n".join(f"| {' | '.join(line)} |" for line in (HEADING, rule, *map(cells, rows))),
        *(f"{row.case}, {row.backend}: {row.wrong}" for row in rows if row.wrong),
    ]
    return "\n\n".join(parts) + "\n"


def reading(rates: Mapping[str, float]) -> list[str]:
    """Return paragraphs that explain the figures."""
    ratio = (
        "The ratio is mha-core's time divided by the peer's: the median over rounds, with its quartiles. Each runs in its own "
        "process, and all take one turn per round; several sets of processes (with --quick, one) share the rounds. Every "
        "answer was checked against float64 before it was timed."
    )
    if not rates:
        return [ratio]
    limit = (
        "The limit is the fastest float32 matrix product of NumPy, torch and mha-core on torch, "
        f"{rates[MATRIX] / 1e9:.0f} GFLOP/s; only products are counted. For work that reads more than it computes, marked "
        f"(copy), it is their fastest copy, {rates[COPY] / 1e9:.0f} GB/s read and written."
    )
    return [ratio, limit]


def write(stem: Path, rows: Sequence[Row], rates: Mapping[str, float], command: str) -> None:
    """Write STEM.md and STEM.json."""
    found = record(rows, rates, command)
    stem.parent.mkdir(parents=True, exist_ok=True)
    stem.with_suffix(".json").write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    stem.with_suffix(".md").write_text(markdown(rows, found), encoding="utf-8")
