"""The command ``python -m tracking``: measure commits with asv, compare them, and write the report.

Exit codes: 0 success, or not slower; 1 an error, or slower; 2 a usage error; 3 nothing was measured, so there is nothing to
show.
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

from . import gate, measure, page, series
from .project import HERE, MEASURING, ROOT, Refused, changed_code, full, keep, machines, uncommitted

BUILD = ROOT / "build" / "tracking"

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
log = Console(stderr=True, soft_wrap=True, highlight=False)

Backends = Annotated[
    list[str] | None,
    typer.Option("--backend", metavar="NAME", help="Only this backend, instead of all that are ready; repeatable."),
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
    except (series.NoHistory, Refused, UserError) as error:
        log.print("[red]error:[/red]", escape(str(error)))
        raise typer.Exit(3 if isinstance(error, series.NoHistory) else 1) from error


def _choice(backends: list[str] | None, benchmark: str, case: str) -> measure.Choice:
    there = list(measure.ready())
    for name in backends or []:
        if name not in there:
            raise typer.BadParameter(f"{name!r} is not ready; expected one of {', '.join(there)}", param_hint="--backend")
    if not there:
        raise typer.BadParameter("no backend is ready; run mha backends to see why", param_hint="--backend")
    return measure.Choice(backends or there, benchmark, case)


def _commit(revision: str, machine: str = LOCAL) -> str:
    """Return the hash of a revision.

    The working tree's benchmarks do the measuring: while they have uncommitted changes, only results of `local` are made.
    """
    if uncommitted(*MEASURING):
        if machine != LOCAL:
            raise typer.BadParameter(
                f"the benchmarks have uncommitted changes; commit {', '.join(MEASURING)} first", param_hint="--machine"
            )
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
def history(
    *,
    machine: Machine = LOCAL,
    minutes: Annotated[float, typer.Option(envvar="MINUTES", help="Start no further commit after this many minutes.")] = 60.0,
    commit: Annotated[bool, typer.Option("--commit", help="Commit the results of each measured commit.")] = False,
    backend: Backends = None,
) -> None:
    """Measure the commits that changed code and have no results: the last, the first, then the middle of the widest gap."""
    if commit and machine == LOCAL:
        raise typer.BadParameter("results of local are not committed; give another --machine", param_hint="--commit")
    with _failing_clearly():
        _commit("HEAD", machine)
        backends = _choice(backend, "", "").backends
        for revision, whole in measure.fill(machine, backends, minutes):
            log.print(f"{revision[:8]}: {'measured' if whole else 'measured, with failures'}")
            if commit:
                keep(revision, machine)
        line = changed_code()
        missing = set(line) - measure.measured(line, machine, backends)
        log.print(f"commits without results: {len(missing) or 'none'}")


@app.command(name="gate")
def gate_between(
    base: Annotated[str, typer.Argument(metavar="BASE", help="The commit to compare with.")],
    *,
    head: Annotated[str, typer.Option(metavar="REVISION")] = "HEAD",
    factor: Annotated[float, typer.Option(min=1.0, help="Least ratio of times that counts as slower.")] = gate.FACTOR,
    backend: Backends = None,
    case: Case = "",
) -> None:
    """Check whether HEAD is slower than BASE, by backend and case. Exit codes: 0 no, 1 yes, 3 not everything was measured."""
    with _failing_clearly():
        choice = _choice(backend, gate.BENCHMARK, case)
        before, after = full(base), _commit(head)
        if before == after:
            raise typer.BadParameter(
                f"{base!r} is commit {after[:8]} itself; give another commit to compare with", param_hint="BASE"
            )
        cells = gate.compare(before, after, choice, factor, BUILD / "gate")
    gate.show(cells, choice, factor)
    raise typer.Exit(gate.verdict(cells, choice, factor))


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


@app.command()
def report(
    *,
    output: Annotated[Path, typer.Option(metavar="PATH", help="File to write the page to.")] = HERE / "report.html",
    config: Annotated[Path, typer.Option(metavar="PATH", help="asv's configuration file.")] = HERE / "asv.conf.json",
) -> None:
    """Write one page that opens offline: newest figures, regressions, and plots by case with a line per backend."""
    with _failing_clearly():
        measured = series.read(config)
    if measured.unrelated:
        many = "commits that are" if measured.unrelated > 1 else "commit that is"
        log.print(
            f"left out: {measured.unrelated} measured {many} not among the first parents of HEAD "
            "(in a shallow clone, run git fetch --unshallow first)"
        )
    page.write(measured, output)
    log.print(f"{escape(str(output))}: {sum(len(machine.commits) for machine in measured.machines)} commits", style="dim")


if __name__ == "__main__":
    app()
