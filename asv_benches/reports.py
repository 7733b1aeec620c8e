"""The writer of reports: Markdown pages of parts and tables, and the results beside them as JSON."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console

from mha_conformance.bench.machine import described, listed, processor, tuning_variables, versions

UNITS = (("y", 365.25 * 86400), ("d", 86400), ("h", 3600), ("min", 60), ("s", 1), ("ms", 1e-3))


def untuned(log: Console) -> None:
    """Remove the variables from the environment that tune libraries, and print which."""
    for name in tuning_variables(os.environ):
        log.print(f"removed from the environment: {name}={os.environ.pop(name)}", highlight=False)


def origin() -> dict[str, Any]:
    """Return when, on which processor, and with which versions and commit results are measured, without host name or paths."""
    return {"date": datetime.now(UTC).date().isoformat(), "machine": processor(), "versions": versions()}


def measured_on(results: Mapping[str, Any], by: str) -> str:
    """Return a sentence on the origin of results: a date, a command, the processor and the versions."""
    return f"Measured on {results['date']} by `{by}`: {described(results['machine'])}; {listed(results['versions'])}."


def table(heading: Sequence[str], rows: Iterable[Sequence[Any]], *, left: int | None = None) -> str:
    """Return a Markdown table. Columns after the first ``left`` are numbers; None: no column is."""
    rule = ["---" if left is None or at < left else "---:" for at in range(len(heading))]
    lines = (heading, rule, *rows)
    return "\n".join(f"| {' | '.join(str(cell).replace('|', chr(92) + '|') for cell in line)} |" for line in lines)


def page(title: str, *parts: str) -> str:
    """Return a page: a title, then the parts that are not empty, with a blank line between each two."""
    return "\n\n".join([f"# {title}", *(part.strip("\n") for part in parts if part)]) + "\n"


def inserted(page: str, begin: str, end: str, text: str) -> str:
    """Return a page with a text in the place between two marks. Raises ValueError if the page lacks one."""
    before, has_begin, rest = page.partition(begin)
    _, has_end, after = rest.partition(end)
    if not (has_begin and has_end):
        raise ValueError(f"the page lacks {begin} or {end}: add both, each on a line of its own")
    stripped = text.strip("\n")
    return f"{before}{begin}\n\n{stripped}\n\n{end}{after}"


def write(stem: Path, results: Mapping[str, Any], text: str) -> None:
    """Write results to STEM.json, and their page to STEM.md."""
    stem.parent.mkdir(parents=True, exist_ok=True)
    stem.with_suffix(".json").write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    stem.with_suffix(".md").write_text(text, encoding="utf-8")


def long_duration(seconds: float) -> str:
    """Format seconds with three digits, in units from years to milliseconds."""
    unit, size = next((each for each in UNITS if seconds >= each[1]), UNITS[-1])
    return f"{seconds / size:.3g} {unit}"
