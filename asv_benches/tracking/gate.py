"""Is this commit slower than that one: ``asv continuous``, and its verdict on each backend and case by name."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

from asv.commands.compare import _is_result_better as is_better
from asv.commands.continuous import Continuous
from asv.results import Results, iter_results_for_machine
from rich.console import Console
from rich.table import Table
from rich.text import Text

from mha_core.bench.work import duration

from .measure import Choice, cells
from .project import MACHINES, configuration

MACHINE = "local"
FACTOR = 1.10


class Verdict(IntEnum):
    """The exit status; 2 is for a command that was asked wrongly."""

    AS_FAST = 0
    SLOWER = 1
    NOT_MEASURED = 3


@dataclass(frozen=True)
class Cell:
    """One benchmark on one backend in one case: seconds per call at either commit, None where it was not measured."""

    benchmark: str
    backend: str
    case: str
    before: float | None
    after: float | None
    slower: bool = False

    @property
    def ratio(self) -> float | None:
        return None if self.before is None or self.after is None else self.after / self.before


def compare(base: str, head: str, choice: Choice, factor: float, results: Path) -> list[Cell]:
    """Both commits in turns, round by round, each round in fresh processes; slower by ``factor``, and by asv's statistics."""
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
    found = {result.commit_hash: result for result in iter_results_for_machine(str(results), MACHINE)}
    return judged(found.get(base), found.get(head), factor)


def judged(base: Results | None, head: Results | None, factor: float) -> list[Cell]:
    """Every cell that either commit was asked for."""
    before, after = (_detailed(result) for result in (base, head))
    found = []
    for name in sorted(before.keys() | after.keys()):
        (first, first_stats), (second, second_stats) = before.get(name, (None, None)), after.get(name, (None, None))
        slower = first is not None and second is not None and is_better(first, second, first_stats, second_stats, factor)
        found.append(Cell(*name, first, second, slower))
    return found


Stats = tuple[dict[str, float], list[float]] | None


def _detailed(result: Results | None) -> dict[tuple[str, str, str], tuple[float | None, Stats]]:
    """Values with what asv's statistics need; what was left out is not among them."""
    if result is None:
        return {}
    detailed: dict[tuple[str, str, str], tuple[float | None, Stats]] = {}
    every = dict(cells(result))
    for benchmark in {name for name, _, _ in every}:
        params = result.get_result_params(benchmark)
        stats, samples = (ask(benchmark, params) for ask in (result.get_result_stats, result.get_result_samples))
        names = [name for name in every if name[0] == benchmark]
        for at, name in enumerate(names):
            value = every[name]
            if value is None or value == value:
                detailed[name] = value, (stats[at], samples[at]) if stats and samples else None
    return detailed


def verdict(found: Iterable[Cell], choice: Choice) -> Verdict:
    """Slower if any cell is; not measured if any is not, or a backend has none."""
    found = list(found)
    if any(cell.slower for cell in found):
        return Verdict.SLOWER
    if any(cell.ratio is None for cell in found) or {*choice.backends} - {cell.backend for cell in found}:
        return Verdict.NOT_MEASURED
    return Verdict.AS_FAST


def show(found: Sequence[Cell], choice: Choice, factor: float) -> None:
    """A line for each cell, the slower ones named again below."""
    console = Console(highlight=False)
    table = Table(title=f"time per call, before and after; slower is beyond {factor:g}x")
    for name, side in (("backend", "left"), ("case", "left"), ("before", "right"), ("after", "right"), ("ratio", "right")):
        table.add_column(name, justify=side, overflow="fold")  # type: ignore[arg-type]
    for cell in found:
        style = "bold red" if cell.slower else "yellow" if cell.ratio is None else ""
        times = ("failed" if seconds is None else duration(seconds) for seconds in (cell.before, cell.after))
        table.add_row(cell.backend, cell.case, *times, "" if cell.ratio is None else f"{cell.ratio:.2f}", style=style)
    console.print(table)
    for cell in found:
        if cell.slower:
            console.print(Text(f"slower: {cell.backend}, {cell.case}: {cell.ratio:.2f}x", style="bold red"))
        elif cell.ratio is None:
            console.print(Text(f"not measured: {cell.backend}, {cell.case}", style="yellow"))
    for name in choice.backends:
        if name not in {cell.backend for cell in found}:
            console.print(Text(f"not measured: {name}, in any case", style="yellow"))
    console.print(
        {Verdict.AS_FAST: "as fast", Verdict.SLOWER: "slower", Verdict.NOT_MEASURED: "not measured"}[verdict(found, choice)]
    )
