"""The command ``python -m tracking``: measure commits with asv, count their instructions, compare them.

Exit codes: 0 success, or not slower; 1 an error, or slower; 2 a usage error; 3 nothing, or not everything, was measured.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from asv.util import UserError
from rich.console import Console
from rich.markup import escape

from mha_conformance.bench.cases import chosen
from mha_conformance.bench.instructions.cases import COUNTED
from mha_conformance.bench.instructions.count import CannotCount
from mha_conformance.history import changes, results

from . import counting, find, gate, grown, measure, seconds
from .compiled import NATIVE
from .project import (
    BUILD,
    HERE,
    MEASURING,
    Refused,
    changed_between,
    changed_code,
    full,
    git,
    keep,
    machines,
    same_code,
    uncommitted,
)

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
log = Console(stderr=True, soft_wrap=True, highlight=False)

Backends = Annotated[
    list[str] | None,
    typer.Option(
        "--backend",
        metavar="NAME",
        help="Only this backend, instead of all that are ready; NAME+native counts with the compiled plugin; repeatable.",
    ),
]
Benchmark = Annotated[
    str, typer.Option(metavar="WORD", help="Only benchmarks whose name contains WORD, such as one_thread.Time.")
]
Case = Annotated[str, typer.Option(metavar="WORD", help="Only cases whose name contains WORD.")]
LOCAL = "local"
"""The machine name for results that are not committed."""


def _machine(name: str) -> str:
    if name not in machines():
        raise typer.BadParameter(f"{name!r} is not in machines.json; expected one of {', '.join(machines())}")
    return name


Machine = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        envvar="MACHINE",
        callback=_machine,
        help="A name from machines.json; results of local are not committed.",
    ),
]


@app.callback()
def main() -> None:
    """Run the same benchmarks on every installed backend, commit by commit."""


@contextmanager
def _failing_clearly() -> Iterator[None]:
    try:
        yield
    except (results.NoHistory, Refused, CannotCount, UserError) as error:
        log.print("[red]error:[/red]", escape(str(error)))
        raise typer.Exit(3 if isinstance(error, results.NoHistory) else 1) from error


def _choice(backends: list[str] | None, benchmark: str, case: str) -> measure.Choice:
    available = list(measure.ready())
    for name in backends or []:
        if name.removesuffix(NATIVE) not in available:
            raise typer.BadParameter(f"{name!r} is not ready; expected one of {', '.join(available)}", param_hint="--backend")
    if not available:
        raise typer.BadParameter("no backend is ready; run mha backends to see why", param_hint="--backend")
    return measure.Choice(list(dict.fromkeys(backends or available)), benchmark, case)


def _commit(revision: str, machine: str = LOCAL) -> str:
    """Return the hash of a revision.

    The working tree's benchmarks do the measuring: while they have uncommitted changes, only results of `local` are made.
    """
    if uncommitted(*MEASURING):
        if machine != LOCAL:
            raise typer.BadParameter(f"the benchmarks have uncommitted changes; commit {', '.join(MEASURING)} first")
        log.print("[yellow]warning:[/yellow] the benchmarks that measure have uncommitted changes")
    if revision == "HEAD" and uncommitted("mha_core", "backends", *(f":(exclude){path}" for path in MEASURING)):
        log.print("[yellow]warning:[/yellow] uncommitted changes are not measured: HEAD is")
    return full(revision)


@app.command(name="measure")
def measure_one(
    revision: Annotated[str, typer.Argument(metavar="REVISION")] = "HEAD",
    *,
    machine: Machine = LOCAL,
    backend: Backends = None,
    benchmark: Benchmark = "",
    case: Case = "",
) -> None:
    """Measure one commit on every backend that is ready, and keep the results."""
    with _failing_clearly():
        if not measure.measure(_commit(revision, machine), machine, _choice(backend, benchmark, case)):
            log.print("[red]error:[/red] some benchmarks failed, see above; the results of the others are kept")
            raise typer.Exit(1)


@app.command()
def count(
    revision: Annotated[str, typer.Argument(metavar="REVISION")] = "HEAD",
    *,
    backend: Backends = None,
) -> None:
    """Count the instructions of every case at one commit, by callgrind, and keep the results."""
    with _failing_clearly():
        commit = _commit(revision, counting.MACHINE)
        table = counting.counted(commit, _choice(backend, "", "").backends)
        counting.keep(commit, table)
    wrong = [f"{name}, {case}: {one.wrong}" for name, row in table.items() for case, one in row.items() if one.failed]
    for line in wrong:
        log.print("[red]error:[/red]", escape(line))
    if wrong:
        raise typer.Exit(1)


@app.command()
def history(
    *,
    minutes: Annotated[float, typer.Option(envvar="MINUTES", help="Start no further commit after this many minutes.")] = 60.0,
    commit: Annotated[bool, typer.Option("--commit", help="Commit the results at the end.")] = False,
    backend: Backends = None,
) -> None:
    """Count the instructions of commits that changed code and have no counts: the newest, then the widest gaps."""
    with _failing_clearly():
        _commit("HEAD", counting.MACHINE)
        backends = _choice(backend, "", "").backends
        for revision, outcome in counting.count_missing(backends, minutes):
            log.print(f"{revision[:8]}: {escape(outcome)}")
        if commit:
            keep(counting.MACHINE, "Instructions of commits that had no counts")
        line = changed_code()
        missing = len(line) - len(counting.counted_commits(line, backends))
        log.print(f"commits without counts: {missing or 'none'} of {len(line)}")


@app.command(name="gate")
def gate_between(
    base: Annotated[
        str | None, typer.Argument(metavar="BASE", help="The commit to compare with; by default the newest with counts.")
    ] = None,
    *,
    head: Annotated[str, typer.Option(metavar="REVISION")] = "HEAD",
    backend: Backends = None,
    case: Case = "",
    markdown: Annotated[
        Path | None, typer.Option(metavar="PATH", help="Write what changed as Markdown, for a pull request.")
    ] = None,
    in_seconds: Annotated[bool, typer.Option("--seconds", help="Compare times, in alternating rounds.")] = False,
    factor: Annotated[
        float, typer.Option(min=1.0, help="Least ratio of times that counts as slower, with --seconds.")
    ] = seconds.FACTOR,
) -> None:
    """Check whether HEAD is slower than BASE, by backend and case. Exit codes: 0 no, 1 yes, 3 not everything was measured."""
    with _failing_clearly():
        choice = _choice(backend, seconds.BENCHMARK, case)
        cases = [] if in_seconds else _cases(case)
        if in_seconds and markdown:
            raise typer.BadParameter("it is written of instructions, not with --seconds", param_hint="--markdown")
        after = _commit(head)
        earlier = [commit for commit in changed_code(after) if commit != after]
        before = full(base) if base else counting.newest(earlier, choice.backends)
        if before == after:
            raise typer.BadParameter(
                f"{base or before[:8]!r} is commit {after[:8]} itself; give another commit to compare with", param_hint="BASE"
            )
        if in_seconds:
            times = seconds.compare(before, after, choice, factor, BUILD / "gate")
            seconds.show(times, choice, factor)
            raise typer.Exit(seconds.verdict(times, choice, factor))
        try:
            table = [] if same_code(before, after) else gate.compare(before, after, choice.backends, cases)
            functions = gate.grown(before, after, table)
        except CannotCount as error:
            log.print("[red]error:[/red]", escape(str(error)))
            raise typer.Exit(gate.Verdict.NOT_MEASURED) from error
    if markdown:
        markdown.write_text(gate.markdown(before, after, table, functions), encoding="utf-8")
    if not table:
        log.print(f"no code changed between {before[:8]} and {after[:8]}")
        raise typer.Exit(gate.Verdict.AS_FAST)
    gate.show(table, functions)
    raise typer.Exit(gate.verdict(table))


@app.command(name="find")
def find_commit(
    case: Annotated[str, typer.Argument(metavar="CASE", help="A word of the case's name; only one case may contain it.")],
    backend: Annotated[str, typer.Argument(metavar="BACKEND")],
    *,
    good: Annotated[
        str | None,
        typer.Option(metavar="REVISION", help="A commit before the change; by default the newest change in the history."),
    ] = None,
    bad: Annotated[str, typer.Option(metavar="REVISION", help="A commit after the change, with --good.")] = "HEAD",
) -> None:
    """Find the commit between two that changed the instructions of a case, and the functions whose counts changed."""
    with _failing_clearly():
        cases = _cases(case)
        if len(cases) > 1:
            raise typer.BadParameter(f"{case!r} is in the names of {len(cases)} cases: {'; '.join(cases)}", param_hint="CASE")
        _choice([backend], "", "")
        if bad != "HEAD" and not good:
            raise typer.BadParameter("give --good too", param_hint="--bad")
        first, last = (full(good), _commit(bad)) if good else changes.newest(results.read([HERE]), cases[0], backend)
        line = changed_between(first, last)
        step = find.find(
            line, backend, cases[0], lambda commit, count: log.print(f"{commit[:8]}: {count:,} instructions", style="dim")
        )
        print(f"{step.before:,} to {step.after:,} instructions ({step.after / step.before - 1:+.2%}) with")
        print(git("show", "--no-patch", "--format=%h %cs %s", step.bad))
        for growth in grown.growths(step.good, step.bad, backend, cases)[cases[0]]:
            print(f"  {growth}")


def _cases(word: str) -> list[str]:
    """Return the counted cases whose name contains a word, or the one that has this name."""
    try:
        return [word] if word in COUNTED else list(chosen([word], COUNTED))
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


@app.command()
def check(
    *,
    expect: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="A backend that must be measured; repeatable.")
    ] = None,
    benchmark: Benchmark = "",
    case: Case = "",
) -> None:
    """Run every benchmark once without keeping results: each must give a right answer on each expected backend."""
    with _failing_clearly():
        choice = measure.Choice(expect, benchmark, case) if expect else _choice(None, benchmark, case)
        wrong = measure.once(_commit("HEAD"), choice, BUILD / "check")
    for line in wrong:
        log.print("[red]error:[/red]", escape(line))
    if wrong:
        raise typer.Exit(1)
    log.print(f"every benchmark ran on {', '.join(choice.backends)}")


if __name__ == "__main__":
    app()
