"""Check whether one commit is slower than another, by backend and case, with ``asv continuous``."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from asv.commands.compare import _is_result_better as is_better
from asv.commands.continuous import Continuous
from asv.results import Results, iter_results_for_machine
from rich.console import Console
from rich.table import Table
from rich.text import Text

from mha_conformance.bench.timing import duration
from mha_conformance.history.results import cells

from .gate import WORDS, Verdict
from .measure import Choice, gap
from .project import MACHINES, configuration

MACHINE, BENCHMARK = "local", "one_thread.Time"
FACTOR = 1.10
ENOUGH = 7  # samples of each commit: with fewer, asv's test cannot find a difference


@dataclass(frozen=True)
class Cell:
    """The results of both commits, on one backend in one case."""

    backend: str
    case: str
    before: float | None
    after: float | None
    """Seconds per call; NaN if the benchmark was skipped, None if it failed."""
    samples: int = 0
    """Number of samples, of the commit with fewer."""
    slower: bool = False
    """True if asv's statistics call the second commit slower."""

    @property
    def ratio(self) -> float | None:
        """Time after divided by time before; None if either is missing."""
        if gap(self.before) or gap(self.after) or not self.before or self.after is None:
            return None
        return self.after / self.before

    def undecided(self, factor: float) -> str:
        """Return why there is no verdict; "" if there is one."""
        if self.ratio is None:
            sides = ((self.before, "before"), (self.after, "after"))
            return ", ".join(f"{gap(seconds)} {when}" for seconds, when in sides if gap(seconds))
        if not self.slower and self.ratio > factor and self.samples < ENOUGH:
            return f"{self.ratio:.2f}x, with too few samples"
        return ""


def compare(base: str, head: str, choice: Choice, factor: float, results: Path) -> list[Cell]:
    """Measure both commits in alternating rounds with new processes, and return the results with asv's verdicts."""
    shutil.rmtree(results, ignore_errors=True)
    Continuous.run(
        configuration(results),
        base=base,
        branch=head,
        factor=factor,
        bench=[choice.pattern()],
        show_stderr=True,
        machine=MACHINE,
        record_samples=True,
        interleave_rounds=True,
        _machine_file=str(MACHINES),
    )
    by_commit = {result.commit_hash: result for result in iter_results_for_machine(str(results), MACHINE)}
    return judged(by_commit.get(base), by_commit.get(head), choice, factor)


def judged(base: Results | None, head: Results | None, choice: Choice, factor: float) -> list[Cell]:
    """Return a cell for each chosen benchmark that either commit has."""
    before, after = (
        {cell[1:3]: cell for cell in (cells(results) if results else ()) if choice.takes(*cell[:3])} for results in (base, head)
    )
    table = []
    for name in sorted(before.keys() | after.keys()):
        both = [commit.get(name) for commit in (before, after)]
        samples = min(len(each.samples or ()) if each else 0 for each in both)
        cell = Cell(*name, *(each.value if each else None for each in both), samples)
        if cell.ratio is not None:
            stats = (each.samples and (each.stats, each.samples) for each in both if each)
            cell = replace(cell, slower=is_better(cell.before, cell.after, *stats, factor))
        table.append(cell)
    return table


def verdict(table: Iterable[Cell], choice: Choice, factor: float = FACTOR) -> Verdict:
    """Return SLOWER if any cell is slower; otherwise NOT_MEASURED if any cell has no verdict or a backend has no cell."""
    table = list(table)
    if any(cell.slower for cell in table):
        return Verdict.SLOWER
    if not table or any(cell.undecided(factor) for cell in table) or {*choice.backends} - {cell.backend for cell in table}:
        return Verdict.NOT_MEASURED
    return Verdict.AS_FAST


def show(table: Sequence[Cell], choice: Choice, factor: float) -> None:
    """Print a row for each cell, and below the table those that are slower or not measured."""
    console = Console(highlight=False)
    shown = Table(title=f"time per call on one thread, before and after; slower means more than {factor:g}x")
    for name, side in (("backend", "left"), ("case", "left"), ("before", "right"), ("after", "right"), ("ratio", "right")):
        shown.add_column(name, justify=side, overflow="fold")  # type: ignore[arg-type]
    for cell in table:
        style = "bold red" if cell.slower else "yellow" if cell.undecided(factor) else ""
        times = (gap(seconds) or duration(seconds or 0.0) for seconds in (cell.before, cell.after))
        shown.add_row(cell.backend, cell.case, *times, "" if cell.ratio is None else f"{cell.ratio:.2f}", style=style)
    console.print(shown)
    for cell in table:
        if cell.slower:
            console.print(Text(f"slower: {cell.backend}, {cell.case}: {cell.ratio:.2f}x", style="bold red"))
        elif why := cell.undecided(factor):
            console.print(Text(f"not measured: {cell.backend}, {cell.case}: {why}", style="yellow"))
    for name in choice.backends:
        if name not in {cell.backend for cell in table}:
            console.print(Text(f"not measured: {name}, in any case", style="yellow"))
    console.print(WORDS[verdict(table, choice, factor)])
