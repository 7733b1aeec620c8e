"""Compare the instructions of two commits by backend and case; nothing is averaged over backends."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

import reports
from mha_conformance.bench.instructions.cases import COUNTED
from mha_conformance.bench.instructions.count import Count

from .counting import counted
from .grown import Growth, growths
from .project import HERE, Refused, full, git

ACCEPTED = HERE / "accepted.toml"


class Verdict(IntEnum):
    """The exit status; 2 means a usage error."""

    AS_FAST = 0
    SLOWER = 1
    NOT_MEASURED = 3


@dataclass(frozen=True)
class Cell:
    """The counts of both commits, on one backend in one case."""

    backend: str
    case: str
    before: Count
    after: Count
    reason: str = ""
    """Why a slowdown is on purpose; "" if none is."""
    accepted: float = 1.0
    """Greatest ratio that is on purpose."""

    @property
    def ratio(self) -> float | None:
        """Instructions after divided by instructions before; None if either is missing."""
        if not self.before.instructions or not self.after.instructions:
            return None
        return self.after.instructions / self.before.instructions

    @property
    def change(self) -> int:
        """1 if a call runs more instructions than before, beyond the case's tolerance; -1 if fewer; otherwise 0."""
        tolerance = COUNTED[self.case].tolerance
        return 0 if self.ratio is None else (self.ratio > 1 + tolerance) - (self.ratio < 1 - tolerance)

    @property
    def slower(self) -> bool:
        return self.change > 0 and self.ratio is not None and self.ratio > self.accepted

    def fewer(self, again: Count) -> Cell:
        """Return the cell with another count of the second commit, if that is smaller."""
        is_smaller = again.instructions and self.after.instructions and again.instructions < self.after.instructions
        return replace(self, after=again) if is_smaller else self

    @property
    def undecided(self) -> str:
        """Return why there is no verdict; "" if there is one, or if the first commit lacks the operation."""
        if self.before.skipped:
            return ""
        sides = ((self.before, "before"), (self.after, "after"))
        return "; ".join(f"{count.wrong} ({when})" for count, when in sides if count.wrong)


def compare(base: str, head: str, backends: Sequence[str], cases: Sequence[str]) -> list[Cell]:
    """Count both commits, and return the cells in order. Raises CannotCount, Refused, and asv's UserError.

    What seems slower is counted once more, and the smaller count stands: beside much other work, one count of a commit was 584
    instructions of a call above another, and no function had changed.
    """
    reasons = accepted(base)
    before, after = (counted(commit, backends, cases) for commit in (base, head))
    table = [
        Cell(backend, case, before[backend][case], after[backend][case], *reasons.get((backend, case), ()))
        for backend in backends
        for case in cases
    ]
    slower = [cell for cell in table if cell.slower]
    if not slower:
        return table
    again = counted(head, *(list(dict.fromkeys(getattr(cell, name) for cell in slower)) for name in ("backend", "case")))
    return [cell.fewer(again[cell.backend][cell.case]) if cell.slower else cell for cell in table]


def accepted(base: str, path: Path = ACCEPTED) -> dict[tuple[str, str], tuple[str, float]]:
    """Return reason and greatest ratio of the slowdowns on purpose after a commit, by backend and case. Raises Refused.

    An entry names the last commit before the slowdown, ``after``: with a later base, the base is slow already.
    """
    try:
        entries = tomllib.loads(path.read_text(encoding="utf-8")).get("slower", []) if path.exists() else []
    except tomllib.TOMLDecodeError as error:
        raise Refused(f"{path.name}: {error}") from error
    reasons = {}
    for entry in entries:
        if lacking := {"after", "backend", "case", "to", "reason"} - entry.keys():
            raise Refused(f"an entry of {path.name} lacks {', '.join(sorted(lacking))}")
        if entry["case"] not in COUNTED:
            raise Refused(f"{path.name}: no case is named {entry['case']!r}; the cases are: {'; '.join(COUNTED)}")
        try:
            after = full(entry["after"])
        except Refused as error:
            raise Refused(f"{path.name}: {error}") from error
        if git("merge-base", base, after) == base:
            reasons[entry["backend"], entry["case"]] = entry["reason"], float(entry["to"])
    return reasons


def verdict(table: Iterable[Cell]) -> Verdict:
    """Return SLOWER if any cell is slower; otherwise NOT_MEASURED if any has no verdict."""
    table = list(table)
    if any(cell.slower for cell in table):
        return Verdict.SLOWER
    return Verdict.NOT_MEASURED if not table or any(cell.undecided for cell in table) else Verdict.AS_FAST


def grown(base: str, head: str, table: Iterable[Cell]) -> dict[tuple[str, str], list[Growth]]:
    """Return the functions whose counts changed, in each cell that changed."""
    functions: dict[tuple[str, str], list[Growth]] = {}
    changed: dict[str, list[str]] = {}
    for cell in table:
        if cell.change:
            changed.setdefault(cell.backend, []).append(cell.case)
    for backend, cases in changed.items():
        functions |= {(backend, case): each for case, each in growths(base, head, backend, cases).items()}
    return functions


WORDS = {Verdict.AS_FAST: "as fast", Verdict.SLOWER: "slower", Verdict.NOT_MEASURED: "not measured"}


def lines(cell: Cell) -> list[str]:
    """Return the cells of a table's row: case, instructions before and after, change, and change of the estimated cycles."""
    figures = [f"{count.instructions:,}" if count.instructions else "none" for count in (cell.before, cell.after)]
    cycles = (
        f"{cell.after.cycles / cell.before.cycles - 1:+.2%}" if cell.ratio and cell.after.cycles and cell.before.cycles else ""
    )
    return [cell.case, *figures, "" if cell.ratio is None else f"{cell.ratio - 1:+.2%}", cycles]


HEADING = ("case", "before", "after", "change", "cycles")


def remarks(cell: Cell, functions: Sequence[Growth]) -> list[str]:
    """Return what a reader should know of a cell."""
    name = f"{cell.backend}, {cell.case}"
    if cell.undecided:
        return [f"not measured: {name}: {cell.undecided}"]
    if not cell.change or cell.ratio is None:
        return []
    word = "slower" if cell.slower else "slower on purpose" if cell.change > 0 else "faster"
    reason = f", because {cell.reason}" if word == "slower on purpose" else ""
    return [f"{word}: {name}: {cell.ratio - 1:+.2%}{reason}", *(f"  {each}" for each in functions)]


def show(table: Sequence[Cell], functions: dict[tuple[str, str], list[Growth]]) -> None:
    """Print a row for each cell, and below the table those that changed or were not measured, with their functions."""
    console = Console(highlight=False, soft_wrap=True)
    shown = Table(title="instructions of a call")
    shown.add_column("backend")
    for name in HEADING:
        shown.add_column(name, justify="left" if name == "case" else "right", overflow="fold")
    for cell in table:
        style = "bold red" if cell.slower else "yellow" if cell.undecided else "green" if cell.change < 0 else ""
        shown.add_row(cell.backend, *lines(cell), style=style)
    console.print(shown)
    for cell in table:
        for line in remarks(cell, functions.get((cell.backend, cell.case), [])):
            console.print(Text(line, style="" if line.startswith(" ") else "bold"))
    console.print(WORDS[verdict(table)])


def markdown(base: str, head: str, table: Sequence[Cell], functions: dict[tuple[str, str], list[Growth]]) -> str:
    """Return a summary for a pull request: for each backend what changed, and the functions. No cells: no code changed."""
    if not table:
        return f"No code changed between {base[:8]} and {head[:8]}.\n"
    parts = [f"Instructions of a call at {head[:8]}, against {base[:8]}: **{WORDS[verdict(table)]}**."]
    for backend in dict.fromkeys(cell.backend for cell in table):
        rows = [cell for cell in table if cell.backend == backend]
        changed = [cell for cell in rows if cell.change or cell.undecided]
        same = f"{len(rows) - len(changed)} of {len(rows)} cases are within their tolerance."
        figures = [lines(cell) for cell in changed if not cell.undecided]
        details = [line for cell in changed for line in remarks(cell, functions.get((backend, cell.case), []))]
        parts += [f"### {backend}", same, reports.table(HEADING, figures, left=1) if figures else ""]
        parts += ["\n".join(["```text", *details, "```"])] if details else []
    return "\n\n".join(filter(None, parts)) + "\n"
