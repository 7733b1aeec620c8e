"""``mha bench --instructions``: the instructions and estimated cycles of a call on each backend."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rich.text import Text

from mha_core import MhaError
from mha_core.cli.tables import SafeConsole, table

from ..bench import texts
from ..bench.cases import chosen
from ..bench.instructions.callgrind import L1_MISS, LAST_MISS, missing
from ..bench.instructions.cases import COUNTED
from ..bench.instructions.count import CannotCount, Count, counts
from ..bench.machine import versions

Counts = Mapping[str, Mapping[str, Count]]
"""Counts by backend and case."""


def cases(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the chosen cases, and a line for each that cannot be counted. Raises ValueError for an unknown word."""
    names, notes = [], []
    for name, case in chosen(words, COUNTED).items():
        if why := texts.missing(case.problem):
            notes.append(f"skipped {name}: {why}")
        else:
            names.append(name)
    return names, notes


def run(backends: Sequence[str], cases: Sequence[str], watch: Callable[[str], None] = lambda _: None) -> Counts:
    """Count cases on each backend, one after another. Raises MhaError where nothing can be counted."""
    if why := missing():
        raise MhaError(why)
    results = {}
    for name in backends:
        watch(f"counting {len(cases)} cases on {name}")
        try:
            results[name] = counts(name, cases)
        except CannotCount as error:  # of this backend alone
            results[name] = dict.fromkeys(cases, Count(wrong=str(error)))
    return results


def record(results: Counts, notes: Sequence[str]) -> dict[str, Any]:
    """Return the counts for JSON, with what was skipped and the versions of the libraries."""
    rows = [{"case": case, "backend": name, **asdict(count)} for name, row in results.items() for case, count in row.items()]
    return {"rows": rows, "notes": list(notes), "versions": versions()}


def show(results: Counts) -> None:
    """Print a table with a row for each case, and what its figures mean."""
    console = SafeConsole(highlight=False)
    cases = list(dict.fromkeys(case for row in results.values() for case in row))
    rows = [[Text(case), *(_cell(row[case]) for row in results.values())] for case in cases]
    console.print(table(console, ["case", *results], rows, title="instructions of a call (estimated cycles)", right=True))
    for line in (*_explained(), *_failed(results)):
        console.print(line)


def _cell(count: Count) -> Text:
    if count.instructions is None:
        return Text("" if count.skipped else "wrong", style="red")
    return Text(f"{count.instructions:,} ({count.cycles:,})")


def _explained() -> Iterator[Text]:
    yield Text(
        "counted by callgrind on one thread of valgrind's processor, which has AVX2; every answer was checked", style="dim"
    )
    yield Text(
        f"cycles: instructions, {L1_MISS} for each miss of the first cache, {LAST_MISS} for each of the last", style="dim"
    )


def _failed(results: Counts) -> Iterator[Text]:
    for name, row in results.items():
        for case, count in row.items():
            if count.failed:
                yield Text(f"{case}, {name}: {count.wrong}", style="red")
