"""The results as docs/gpu.json and docs/gpu.md."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

import reports
from mha_conformance.bench.timing import duration

from .cases import CASES, Case, Goal
from .measure import Row

NOT_MEASURED = "not measured"
_HEAD = """\
`make gpu-check` runs the conformance suite on CuPy and on torch with CUDA, and writes their certificates. Then it times
[the cases](../asv_benches/gpu/cases.py) on the same GPU, in turns, with CUDA events. Inputs are bfloat16; several sets of
inputs take turns. Every answer is checked against float64 before it is timed. A ratio is the median of the ratios of the
rounds, so it may differ from the ratio of the times below.
"""


def page(results: dict[str, Any] | None, cases: Sequence[Case] = CASES) -> str:
    """Return the Markdown of docs/gpu.md from what ``record`` returned; None if nothing was measured yet."""
    parts = [_HEAD, _measured_on(results)]
    if results is not None:
        goals = (_goal(case, goal, results) for case in cases for goal in case.goals)
        parts.append(reports.table(("case", "contender", "compared with", "goal", "measured"), goals))
        parts.append(reports.table(("case", "contender", "time", "rate"), map(_row, results["rows"])))
    return reports.page("Benchmarks on a GPU", *parts)


def record(
    rows: Sequence[Row], verdicts: Iterable[dict[str, Any]], limits: dict[str, float], head: dict[str, Any]
) -> dict[str, Any]:
    """Return the content of gpu.json."""
    return {
        "format": 1,
        **head,
        "limits": limits,
        "rows": [asdict(row) | {"median": row.median if row.seconds else None} for row in rows],
        "verdicts": list(verdicts),
    }


def _measured_on(results: dict[str, Any] | None) -> str:
    """Return the paragraph that says when, on what and with which versions the figures were measured."""
    if results is None:
        return "These benchmarks have not been run on a GPU yet."
    limits, versions = results["limits"], reports.listed(results["versions"])
    if results["rehearsal"]:
        what = "A rehearsal on the CPU with small problems, and NumPy in place of CuPy: the figures mean nothing"
        return f"{what}. {versions}."
    return (
        f"Measured on {results['date']} on one {results['card']}; {versions}. Its limits in the same run: "
        f"{limits['FLOP'] / 1e12:.0f} TFLOP/s in bfloat16 products, {limits['B'] / 1e9:.0f} GB/s read and written in copies. "
        "The goals are for an H200."
    )


def _goal(case: Case, goal: Goal, results: dict[str, Any]) -> tuple[str, ...]:
    asked = f"at most {goal.at:.2f} of its time" if goal.beside else f"at least {goal.at:.2f} of its rate"
    measured = NOT_MEASURED
    for verdict in results["verdicts"]:
        if verdict["case"] == case.name and verdict["goal"] == asdict(goal):
            ratio, met = verdict["found"], verdict["met"]
            measured = "not timed, see below" if ratio is None else f"{ratio:.2f}, {'met' if met else 'missed'}"
    return case.name, goal.contender, goal.beside or "a copy", asked, measured


def _row(row: dict[str, Any]) -> tuple[str, ...]:
    if row["wrong"]:
        return row["case"], row["contender"], row["wrong"], ""
    scale, unit = (1e12, "TFLOP/s") if row["unit"] == "FLOP" else (1e9, "GB/s")
    return row["case"], row["contender"], duration(row["median"]), f"{row['rate'] / scale:.4g} {unit}"
