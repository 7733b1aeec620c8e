"""``mha bench``: time each backend against plain NumPy and the limits of the machine."""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeElapsedColumn
from rich.text import Text

from mha_core import BackendUnavailable
from mha_core.cli.probe import report
from mha_core.cli.tables import SafeConsole, table
from mha_core.shared import check_name, load

from ..bench.cases import Problem, chosen
from ..bench.compare import Contender, compare
from ..bench.limits import COPY, MATRIX, measured
from ..bench.machine import busy, tuning_variables
from ..bench.plain_numpy import PLAIN
from ..bench.rounds import QUICK, Effort, ratio
from ..bench.texts import Texts
from ..bench.timing import duration
from ..bench.worker import Crew, Start, Worker

_TITLE = "time per call, ratio to plain NumPy (share of the machine's limit)"
SUPPORTED = 1.25
"""Greatest ratio of the quartiles of a ratio that is printed as one number."""
BUSY = 0.1
"""Share of the cores that other processes may use without a note."""
EFFORT = Effort(rounds=9, seconds=3.0, processes=1)


@dataclass(frozen=True)
class Row:
    """The result of one backend in one case."""

    case: str
    backend: str
    seconds: float | None = None
    """Median time per call; None if nothing was timed."""
    ratio: float | None = None
    """Time relative to plain NumPy's: the median over the rounds."""
    low: float | None = None
    high: float | None = None
    """Quartiles of the ratio over the rounds."""
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


class Stopped(Exception):
    """The user pressed Ctrl-C."""

    def __init__(self, rows: list[Row], done: int, total: int) -> None:
        super().__init__(f"interrupted after {done} of {total} cases")
        self.results = Results(rows, {}, [])


Watch: TypeAlias = Callable[[str, int, int, Sequence[Row]], None]
"""Called with what is measured next, how much of how much is done, and the rows so far."""


def run(
    backends: Sequence[str],
    words: Sequence[str],
    *,
    quick: bool = False,
    model: Path | None = None,
    texts: Path | None = None,
    watch: Watch = lambda *_: None,
) -> Results:
    """Time each backend in each case, on all cores, in separate processes; with ``quick``, one process for each backend.

    Raises UnknownCase, UnknownBackend, Stopped, and BackendUnavailable if a requested backend or all backends cannot be used.
    """
    cases, notes = _cases(words, model, texts)
    rows: list[Row] = []
    done = 0
    try:
        names, skipped = usable(backends)
        notes += [*skipped, *conditions()]
        effort = QUICK if quick else EFFORT
        kinds = {problem.limit.kind for problem in cases.values() if problem.limit}
        total = len(cases) + bool(kinds)
        with Crew() as crew:
            start: Start = crew.worker if quick else Worker
            for case, problem in cases.items():
                watch(case, done, total, rows)
                rows += _rows(case, problem, names, effort, start)
                done += 1
            watch("the limits of this machine", done, total, rows)
            limits = measured(names, QUICK, kinds, start) if kinds else {}
    except KeyboardInterrupt as error:
        raise Stopped(rows, done, len(cases)) from error
    notes += [f"the limit of {name} could not be measured" for name in names if kinds - limits.get(name, {}).keys()]
    return Results([_limited(row, cases[row.case], limits) for row in rows], limits, notes)


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


def usable(asked: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the requested backends, which must all work; or all that work, and a line for each installed one that does not."""
    if asked:
        for name in asked:
            load(check_name(name))
        return list(dict.fromkeys(asked)), []
    rows = report()
    lines = [f"skipped {row['name']}: {row['reason']}" for row in rows if row["state"] not in ("ready", "not installed")]
    if all(row["state"] != "ready" for row in rows):
        raise BackendUnavailable(f"no backend is ready; {'; '.join(lines)}")
    return [row["name"] for row in rows if row["state"] == "ready"], lines


def conditions() -> Iterator[str]:
    """Yield a line for each condition of this machine that changes times."""
    if (share := busy()) > BUSY:
        yield f"other processes used {share:.0%} of the cores when this began: times are longer, and ratios less certain"
    yield from (f"environment variable {name}={os.environ[name]} is set" for name in tuning_variables(os.environ))


def _rows(case: str, problem: Problem, names: Sequence[str], effort: Effort, start: Start) -> Iterable[Row]:
    kind = type(problem)
    contenders = [Contender(name, kind.ours, (problem, name)) for name in names]
    compared = compare(problem, Contender(PLAIN, kind.plain, (problem,)), contenders, effort, start)
    times = compared.seconds
    yield Row(case, PLAIN, statistics.median(times[PLAIN]) if times[PLAIN] else None)
    for name in names:
        if name in compared.wrong:
            yield Row(case, name, wrong=compared.wrong[name])
            continue
        relative = ratio(times[name], times[PLAIN])
        yield Row(case, name, statistics.median(times[name]), relative.median, relative.low, relative.high)


def _limited(row: Row, problem: Problem, limits: Mapping[str, Mapping[str, float]]) -> Row:
    """Return a row with the share of the machine's limit that it reaches."""
    limit, rates = problem.limit, limits.get(row.backend, {})
    if row.seconds is None or limit is None or limit.kind not in rates:
        return row
    return replace(row, reached=limit.amount / row.seconds / rates[limit.kind], of=limit.kind)


@contextmanager
def watching(*, as_json: bool) -> Iterator[Watch]:
    """Yield a ``Watch`` that shows a bar and the rows so far on the terminal, and removes them at the end.

    The rows are left out if the results go elsewhere. Nothing is shown if standard error is no terminal either.
    """
    console = SafeConsole(highlight=False)
    whole = console.is_terminal and not as_json
    console = console if whole else SafeConsole(stderr=True)
    bar = Progress(BarColumn(bar_width=30), MofNCompleteColumn(), TimeElapsedColumn(), console=console)
    task = bar.add_task("")

    def watch(doing: str, done: int, total: int, rows: Sequence[Row]) -> None:
        bar.update(task, completed=done, total=total)
        shown = [_table(console, rows)] if whole and rows else []
        live.update(Group(*shown, Text(doing), bar))

    with Live(Text("looking for backends"), console=console, transient=True, vertical_overflow="crop") as live:
        yield watch


def _table(console: Console, results: Sequence[Row]) -> RenderableType:
    """Return a table with a row for each case and a column for each backend."""
    columns = list(dict.fromkeys(row.backend for row in results))
    rows = []
    for case in dict.fromkeys(row.case for row in results):
        at = {row.backend: row for row in results if row.case == case}
        best = min((row.seconds for row in at.values() if row.seconds is not None), default=None)
        rows.append([Text(case), *(_cell(at[name], best) for name in columns)])
    return table(console, ["case", *columns], rows, title=_TITLE, right=True)


def show(results: Results, tabled: Callable[[Console, Sequence[Row]], RenderableType] = _table) -> None:
    """Print the table, and what its figures mean."""
    console = SafeConsole(highlight=False)
    console.print(tabled(console, results.rows))
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
        words.append(_relative(row.ratio, row.low or row.ratio, row.high or row.ratio))
        words.append("     " if row.reached is None or row.reached < 0.005 else f"({row.reached:.0%})".rjust(5))
    return Text(" ".join(words), style="bold green" if row.seconds == best else "")


def _relative(ratio: float, low: float, high: float) -> str:
    """Format a ratio; a range if half of the rounds lie too far apart for one number."""
    return f"{ratio:5.2f}x" if high <= SUPPORTED * low else f"{low:.2f}-{high:.2f}x"


def _explained(limits: Mapping[str, Mapping[str, float]]) -> Iterable[str]:
    yield "on all cores, each backend in its own process; every answer was checked against float64 before it was timed"
    same = list(dict.fromkeys(tuple(rates.items()) for rates in limits.values()))
    for rates in map(dict, same):
        names = ", ".join(name for name, its in limits.items() if its == rates)
        measured = [f"{rates[MATRIX] / 1e9:.0f} GFLOP/s in matrix products"] if MATRIX in rates else []
        measured += [f"{rates[COPY] / 1e9:.0f} GB/s read and written, for decoding"] if COPY in rates else []
        yield f"limits for {names}, measured just now as the best of NumPy and these: {' and '.join(measured)}"
