"""The command ``python -m peers``: time each backend against other libraries."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

import reports
from mha_conformance.bench import limits, machine
from mha_conformance.bench.cases import chosen
from mha_conformance.bench.machine import source
from mha_conformance.bench.rounds import QUICK, Effort
from mha_conformance.bench.worker import WorkerFailed

from . import summary
from .cases import BACKENDS, CASES, KNOWN, MissingPeer, check_installed
from .measure import Row, measured
from .report import draw, read, reading, record, table

WIDTH = 180  # columns of a table that is written to a file or pipe


def main(
    *,
    case: Annotated[
        list[str] | None, typer.Option(metavar="WORD", help="Only cases whose name contains WORD; repeatable.")
    ] = None,
    backend: Annotated[list[str] | None, typer.Option(metavar="NAME", help="Only this backend; repeatable.")] = None,
    rounds: Annotated[int, typer.Option(min=2, help="Greatest number of rounds; long cases take fewer.")] = Effort().rounds,
    processes: Annotated[
        int, typer.Option(min=1, help="Processes per contender, one after another; they share the rounds.")
    ] = Effort().processes,
    quick: Annotated[bool, typer.Option(help="Three rounds in one process: shows that everything runs, not how fast.")] = False,
    report: Annotated[Path | None, typer.Option(metavar="STEM", help="Write STEM.md, STEM.svg and STEM.json.")] = None,
    pages: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write the page of this processor into DIR, which has those of others.")
    ] = None,
    readme: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the main lines of the pages beside it into FILE.")
    ] = None,
    again: Annotated[
        Path | None, typer.Option("--from", metavar="FILE", help="Write the page of this FILE.json again; nothing is measured.")
    ] = None,
) -> None:
    """Time each backend and its peers in separate processes; print goals, ratios and shares of the machine's limit."""
    if readme is not None and pages is None and again is None:
        raise typer.BadParameter("its tables come from results: add --pages DIR, or --from FILE", param_hint="--readme")
    if again is not None:
        _write(again.with_suffix(""), read(again), readme)
        return
    os.environ["HF_HUB_OFFLINE"] = "1"  # the model is installed: contenders need no network
    console, log = Console(width=None if sys.stdout.isatty() else WIDTH), Console(stderr=True)
    reports.untuned(log)
    effort = QUICK if quick else Effort(rounds, processes=processes)
    backends = backend or list(KNOWN)
    try:
        names = chosen(case or [], {each.name: each for each in CASES})
        cases = [each for each in CASES if each.name in names]
        check_installed(cases)
        log.print(f"measuring mha_core from {escape(str(source()))}", highlight=False)
        rates = limits.measured(list(BACKENDS), effort)[BACKENDS[0]] if any(each.problem.limit for each in cases) else {}
        rows: list[Row] = []
        for each in cases:
            log.print(f"{each.name}, {each.peer.name}", highlight=False)
            rows += measured(each, backends, effort, rates)
    except (ValueError, MissingPeer, WorkerFailed, AssertionError) as error:
        log.print("[red]error:[/red]", escape(str(error)))
        raise typer.Exit(1) from error
    console.print(table(rows))
    console.print(*reading(rates), sep="\n", highlight=False)
    results = record(rows, rates, _command(case or [], backend or [], effort))
    for stem in filter(None, (report, pages and pages / machine.stem(results["machine"]))):
        _write(stem, (rows, results), readme if stem is not report else None)
    for row in rows:
        if row.wrong:
            log.print(f"[red]{escape(row.case)}, {row.backend}:[/red]", escape(row.wrong))
    if any(row.wrong for row in rows):
        raise typer.Exit(1)


def _write(stem: Path, page: summary.Page, readme: Path | None) -> None:
    draw(stem, *page)
    if readme is not None:
        summary.write(readme, [read(file) for file in sorted(stem.parent.glob("*.json"))])


def _command(case: Sequence[str], backend: Sequence[str], effort: Effort) -> str:
    """Return the command line that gives the same table, for the report."""
    usual = Effort()
    words = [f"--case '{word}'" for word in case] + [f"--backend {name}" for name in backend]
    if effort == QUICK:
        words.append("--quick")
    else:
        words += [f"--rounds {effort.rounds}"] * (effort.rounds != usual.rounds)
        words += [f"--processes {effort.processes}"] * (effort.processes != usual.processes)
    return f'make bench-peers ARGS="{" ".join(words)}"' if words else "make bench-peers"


if __name__ == "__main__":
    typer.run(main)
