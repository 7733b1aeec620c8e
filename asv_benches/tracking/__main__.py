"""``python -m tracking``: measure commits by asv, compare them, and show what was measured over time.

Exit codes: 0 done, or as fast as before; 1 could not be done, or slower; 2 asked wrongly; 3 not measured,
and so nothing to show.
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

from . import commits, gate, measure, page, series
from .project import HERE, JUDGE, ROOT, GitFailed, full, machines, uncommitted

BUILD = ROOT / "build" / "tracking"

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
log = Console(stderr=True, soft_wrap=True, highlight=False)

Backends = Annotated[
    list[str] | None, typer.Option("--backend", metavar="NAME", help="Only this one, of all that are ready; again for more.")
]
Benchmark = Annotated[str, typer.Option(metavar="WORD", help="Only benchmarks with this in their name: one_thread.Time.")]
Case = Annotated[str, typer.Option(metavar="WORD", help="Only cases with this in their name.")]
LOCAL = "local"
"""The machine whose results stay with their user."""


def _machine(name: str) -> str:
    if name not in machines():
        raise typer.BadParameter(f"{name!r} is not in machines.json, which has {', '.join(machines())}")
    return name


Machine = Annotated[
    str,
    typer.Option(metavar="NAME", envvar="MACHINE", callback=_machine, help="Of machines.json; results of local stay with you."),
]


@app.callback()
def main() -> None:
    """Performance over time: the same benchmarks on every installed backend."""


@contextmanager
def _failing_clearly() -> Iterator[None]:
    try:
        yield
    except series.NoHistory as error:
        log.print("[red]error:[/red]", escape(str(error)))
        raise typer.Exit(3) from error
    except (series.NoBackend, measure.NothingMeasured, UserError, GitFailed, commits.ShallowClone) as error:
        log.print("[red]error:[/red]", escape(str(error)))
        raise typer.Exit(1) from error


def _choice(backends: list[str] | None, benchmark: str, case: str) -> measure.Choice:
    there = list(measure.ready())
    for name in backends or []:
        if name not in there:
            raise typer.BadParameter(f"{name!r} is not ready here; {', '.join(there)} are", param_hint="--backend")
    if not there:
        raise typer.BadParameter("no backend is ready here: mha backends tells why", param_hint="--backend")
    return measure.Choice(backends or there, benchmark, case)


def _commit(revision: str, machine: str = LOCAL) -> str:
    """Its hash. What measures is the working tree's: with changes in it no results are made to be committed."""
    if uncommitted(*JUDGE):
        if machine != LOCAL:
            raise typer.BadParameter(
                f"the benchmarks have changes that are not committed: {', '.join(JUDGE)}", param_hint="--machine"
            )
        log.print("[yellow]warning:[/yellow] commits are measured by benchmarks that are not committed")
    if revision == "HEAD" and uncommitted("mha_core", "backends", *(f":(exclude){path}" for path in JUDGE)):
        log.print("[yellow]warning:[/yellow] what is not committed is not measured: HEAD is")
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
            log.print("[red]error:[/red] some benchmarks failed, as told above; the others are kept")
            raise typer.Exit(1)


@app.command()
def history(
    *,
    machine: Machine = LOCAL,
    minutes: Annotated[float, typer.Option(envvar="MINUTES", help="After which no other commit is begun.")] = 60.0,
    commit: Annotated[bool, typer.Option("--commit", help="Commit the results of each, one by one.")] = False,
    backend: Backends = None,
) -> None:
    """Measure the commits that changed code and are not measured: the last, the first, then the middle of the widest gap."""
    if commit and machine == LOCAL:
        raise typer.BadParameter("results of local are not committed: name another --machine", param_hint="--commit")
    with _failing_clearly():
        _commit("HEAD", machine)
        backends = _choice(backend, "", "").backends
        for found, whole in measure.fill(machine, backends, minutes):
            log.print(f"{found[:8]}: {'measured' if whole else 'measured, but for what failed'}")
            if commit:
                commits.keep(found, machine)
        line = commits.changed_code()
        missing = set(line) - measure.measured(line, machine, backends)
        log.print(f"{len(missing)} commits are left" if missing else "no commit is left")


@app.command(name="gate")
def gate_between(
    base: Annotated[str, typer.Argument(metavar="BASE", help="The commit to be as fast as.")],
    *,
    head: Annotated[str, typer.Option(metavar="REVISION")] = "HEAD",
    factor: Annotated[float, typer.Option(min=1.0, help="Slower by less is as fast.")] = gate.FACTOR,
    backend: Backends = None,
    case: Case = "",
) -> None:
    """Is HEAD slower than BASE: 0 no, 1 yes, 3 something could not be measured. Each backend and case by name."""
    with _failing_clearly():
        choice = _choice(backend, gate.BENCHMARK, case)
        before, after = full(base), _commit(head)
        if before == after:
            raise typer.BadParameter(
                f"{base!r} is the commit {after[:8]} itself: there is nothing to compare", param_hint="BASE"
            )
        cells = gate.compare(before, after, choice, factor, BUILD / "gate")
    gate.show(cells, choice, factor)
    raise typer.Exit(gate.verdict(cells, choice, factor))


@app.command()
def check(
    *,
    expect: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="A backend that must have been there; again for more.")
    ] = None,
    benchmark: Benchmark = "",
    case: Case = "",
) -> None:
    """Run every benchmark once and keep nothing: each must give a right answer, on each backend that is expected."""
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
    output: Annotated[Path, typer.Option(metavar="PATH", help="The page.")] = HERE / "report.html",
    config: Annotated[Path, typer.Option(metavar="PATH", help="Of asv, whose results are shown.")] = HERE / "asv.conf.json",
) -> None:
    """Write one page that opens offline: newest figures, regressions, and a plot for each case, a line for each backend."""
    with _failing_clearly():
        found = series.read(config)
    if found.strangers:
        many = "commits that are" if found.strangers > 1 else "commit that is"
        log.print(
            f"left out: {found.strangers} measured {many} not among the first parents of HEAD "
            "(where a shallow clone has lost them: git fetch --unshallow)"
        )
    page.write(found, output)
    log.print(f"{escape(str(output))}: {sum(len(machine.commits) for machine in found.machines)} commits", style="dim")


if __name__ == "__main__":
    app()
