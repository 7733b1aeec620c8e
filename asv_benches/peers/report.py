"""What was measured: a table for the terminal, and the same as Markdown and JSON to be kept."""

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
"""Of the JSON: another number where a key is taken away or changes its meaning."""

HEADING = ("case", "peer", "backend", "goal", "measured", "quartiles", "verdict", "time", "peer's", "of the limit")
LEFT = 3  # columns of words; those that follow are numbers
STYLES = {"met": "green", "missed": "yellow", "wrong": "bold red"}


def cells(row: Row) -> tuple[str, ...]:
    """A row as words, under HEADING."""
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
    """For the terminal."""
    found = Table(title="time relative to the peer")
    for at, name in enumerate(HEADING):
        found.add_column(name, justify="left" if at < LEFT else "right", overflow="fold")
    for row in rows:
        words = cells(row)
        style = STYLES.get(row.verdict.partition(" ")[0], "")
        found.add_row(*words, style=style)
    return found


def record(rows: Sequence[Row], rates: Mapping[str, float], command: str) -> dict[str, Any]:
    """All that the table holds and what it depends on, for JSON."""
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
    """A page: the table, below what it depends on."""
    machine = found["machine"]
    rule = ["---"] * LEFT + ["---:"] * (len(HEADING) - LEFT)
    parts = [
        "# Beside the peers",
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
    """What the numbers mean, a paragraph each."""
    ratio = (
        "A ratio is our time over the peer's, each in a process of its own, in lock-step: the median over the rounds "
        "of several such sets of processes (of one, if quick), and its quartiles. Every answer was checked against float64 "
        "before it was timed."
    )
    if not rates:
        return [ratio]
    limit = (
        "The limit is the best float32 matrix product of NumPy, torch and ours on torch, "
        f"{rates[MATRIX] / 1e9:.0f} GFLOP/s, counting "
        f"products only; for what reads more than it computes their best copy, {rates[COPY] / 1e9:.0f} GB/s read and "
        "written."
    )
    return [ratio, limit]


def write(stem: Path, rows: Sequence[Row], rates: Mapping[str, float], command: str) -> None:
    """STEM.md and STEM.json."""
    found = record(rows, rates, command)
    stem.parent.mkdir(parents=True, exist_ok=True)
    stem.with_suffix(".json").write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    stem.with_suffix(".md").write_text(markdown(rows, found), encoding="utf-8")
