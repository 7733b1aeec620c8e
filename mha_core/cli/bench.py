"""``mha bench``: time each backend against plain NumPy and the limits of the machine."""

from __future__ import annotations

import os
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from ..bench.cases import Problem, chosen
from ..bench.compare import Contender, compare
from ..bench.limits import COPY, MATRIX, measured
from ..bench.machine import tuning_variables
from ..bench.rounds import QUICK, Effort, ratio
from ..bench.texts import Texts
from ..bench.timing import duration
from ..dispatch.backend import load
from ..dispatch.errors import BackendUnavailable
from ..dispatch.selection import check_name
from .backends import report
from .tables import table

PLAIN = "plain NumPy"
_TITLE = "time per call, ratio to plain NumPy (share of the machine's limit)"
EFFORT = Effort(rounds=9, seconds=3.0, processes=1)


@dataclass(frozen=True)
class Row:
    """The result of one backend in one case."""

    case: str
    backend: str
    seconds: float | None = None
    """Median time per call; None if nothing was timed."""
    ratio: float | None = None
    """Time relative to plain NumPy's."""
    reached: float | None = None
    """Share of the machine's limit; None if no limit applies."""
    of: str | None = None
    """Kind of the limit: MATRIX or COPY."""
    wrong: str = ""
    """Why nothing was timed: a wrong answer, or an error."""


@dataclass(frozen=True)
class Results:
    """All results of a run."""

    rows: list[Row]
    limits: dict[str, dict[str, float]]
    """Peak rates by backend and kind."""
    notes: list[str]
    """Lines on what was skipped, and on settings that change the figures."""

    def record(self) -> dict[str, Any]:
        """Return the results for JSON."""
        return asdict(self)


def run(
    backends: Sequence[str], words: Sequence[str], *, quick: bool = False, model: Path | None = None, texts: Path | None = None
) -> Results:
    """Time each backend in each case, on all cores, in separate processes.

    Raises UnknownCase and UnknownBackend, and BackendUnavailable if a requested backend or all backends cannot be used.
    """
    cases, notes = _cases(words, model, texts)
    names, skipped = _usable(backends)
    notes += skipped
    notes += [f"environment variable {name}={os.environ[name]} is set" for name in tuning_variables(os.environ)]
    effort = QUICK if quick else EFFORT
    kinds = {problem.limit.kind for problem in cases.values() if problem.limit}
    limits = measured(names, QUICK, kinds) if kinds else {}
    notes += [f"the limit of {name} could not be measured" for name in names if kinds - limits.get(name, {}).keys()]
    rows = [row for case, problem in cases.items() for row in _rows(case, problem, names, effort, limits)]
    return Results(rows, limits, notes)


class UnknownCase(ValueError):
    """No case has the given word in its name, or no chosen case reads the given files."""


def _cases(words: Sequence[str], model: Path | None, texts: Path | None) -> tuple[dict[str, Problem], list[str]]:
    """Return the chosen cases and notes. The text encoder gets the given files; without files it is skipped, with a note."""
    try:
        cases, notes = chosen(words), []
    except ValueError as error:
        raise UnknownCase(str(error)) from error
    encoders = {name: problem for name, problem in cases.items() if isinstance(problem, Texts)}
    if model is not None and not encoders:
        raise UnknownCase("--model is given, but no chosen case uses it; choose the text encoder")
    for name, problem in encoders.items():
        given = replace(problem, model=model, file=texts, every=1) if model else problem
        del cases[name]
        try:
            given.check()
        except (FileNotFoundError, ModuleNotFoundError):
            if model is not None:
                raise
            notes.append("skipped the text encoder: give --model DIR and --texts FILE")
            continue
        cases["text encoder" if model else name] = given
    return cases, notes


def _usable(asked: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the requested backends, which must all work; or all that work, and a line for each that does not."""
    if asked:
        for name in asked:
            load(check_name(name))
        return list(dict.fromkeys(asked)), []
    rows = report()
    lines = [f"skipped {row['name']}: {row['reason']}" for row in rows if row["state"] != "ready"]
    if all(row["state"] != "ready" for row in rows):
        raise BackendUnavailable(f"no backend is ready; {'; '.join(lines)}")
    return [row["name"] for row in rows if row["state"] == "ready"], lines


def _rows(
    case: str, problem: Problem, names: Sequence[str], effort: Effort, limits: Mapping[str, Mapping[str, float]]
) -> Iterable[Row]:
    kind, limit = type(problem), problem.limit
    contenders = [Contender(name, kind.ours, (problem, name)) for name in names]
    times, wrong = compare(problem, Contender(PLAIN, kind.plain, (problem,)), contenders, effort)
    yield Row(case, PLAIN, statistics.median(times[PLAIN]) if times[PLAIN] else None)
    for name in names:
        if name in wrong:
            yield Row(case, name, wrong=wrong[name])
            continue
        seconds = statistics.median(times[name])
        over = ratio(times[name], times[PLAIN]).median
        if limit is None or limit.kind not in limits.get(name, {}):
            yield Row(case, name, seconds, over)
        else:
            yield Row(case, name, seconds, over, limit.amount / seconds / limits[name][limit.kind], limit.kind)


def show(results: Results) -> None:
    """Print a table with a row for each case and a column for each backend."""
    console = Console(highlight=False)
    columns = list(dict.fromkeys(row.backend for row in results.rows))
    rows = []
    for case in dict.fromkeys(row.case for row in results.rows):
        at = {row.backend: row for row in results.rows if row.case == case}
        best = min((row.seconds for row in at.values() if row.seconds is not None), default=None)
        rows.append([Text(case), *(_cell(at[name], best) for name in columns)])
    console.print(table(console, ["case", *columns], rows, title=_TITLE, right=True))
    for line in (*_explained(results.limits), *results.notes):
        console.print(Text(line, style="dim"))
    for row in results.rows:
        if row.wrong:
            console.print(Text(f"{row.case}, {row.backend}: {row.wrong}", style="red"))


def _cell(row: Row, best: float | None) -> Text:
    if row.seconds is None:
        return Text("wrong" if row.wrong else "", style="red")
    words = [duration(row.seconds)]
    if row.ratio is not None:
        words.append(f"{row.ratio:5.2f}x")
        words.append("     " if row.reached is None or row.reached < 0.005 else f"({row.reached:.0%})".rjust(5))
    return Text(" ".join(words), style="bold green" if row.seconds == best else "")


def _explained(limits: Mapping[str, Mapping[str, float]]) -> Iterable[str]:
    yield "on all cores, each backend in its own process; every answer was checked against float64 before it was timed"
    same = list(dict.fromkeys(tuple(rates.items()) for rates in limits.values()))
    for rates in map(dict, same):
        names = ", ".join(name for name, its in limits.items() if its == rates)
        found = [f"{rates[MATRIX] / 1e9:.0f} GFLOP/s in matrix products"] if MATRIX in rates else []
        found += [f"{rates[COPY] / 1e9:.0f} GB/s read and written, for decoding"] if COPY in rates else []
        yield f"limits for {names}, measured just now as the best of NumPy and these: {' and '.join(found)}"
