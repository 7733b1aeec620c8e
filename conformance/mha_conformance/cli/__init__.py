"""The commands ``mha conform``, ``mha bench`` and ``mha report``: their arguments."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from mha_core import MhaError
from mha_core.cli.command import command, failing_clearly

from . import conform as conformance


@command("Example:  mha conform torch --device cuda --dtype float16")
def conform_command(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A backend that `mha backends` lists.")],
    *,
    device: Annotated[str | None, typer.Option("--device", metavar="D", help="One of the backend's devices.")] = None,
    dtype: Annotated[list[str] | None, typer.Option("--dtype", metavar="T", help="Only this dtype; repeatable.")] = None,
    plugin: Annotated[
        list[str] | None,
        typer.Option("--plugin", metavar="MODULE", help="Register a plugin module that is not installed; repeatable."),
    ] = None,
    expression: Annotated[
        str | None, typer.Option("-k", metavar="EXPRESSION", help="Only tests whose names match, as in pytest.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Run fewer problems of each kind.")] = False,
    part: Annotated[
        float,
        typer.Option("--part", metavar="S", min=0, max=1, help="Only this part of each covering design."),
    ] = 1.0,
    seed: Annotated[int, typer.Option("--seed", metavar="N", min=0, help="Seed of the random problems.")] = 0,
    processes: Annotated[
        int | None,
        typer.Option(
            "--processes",
            metavar="N",
            min=1,
            help="Run the tests in N processes, which share the cores and take N times the memory; needs pytest-xdist.",
        ),
    ] = None,
    report: Annotated[
        Path | None,
        typer.Option("--report", metavar="DIR", help="Write a certificate to DIR: NAME[-DEVICE].json, .md and .svg."),
    ] = None,
) -> None:
    """Run the conformance suite on a backend and its kernels. Exit codes are pytest's."""
    options: dict[str, Any] = {"--device": device, "--dtype": dtype, "--plugin": plugin, "-k": expression}
    with failing_clearly():
        options |= {"--quick": quick, "--part": part, "--seed": seed, "--report": report}
        status = conformance.conform(name, options, processes=processes)
    if status == conformance.NOTHING_RUN:
        selected = "" if expression is None else f" that matches -k {expression!r}"
        typer.echo(f"error: nothing was tested: no test{selected} applies to backend {name!r}", err=True)
    raise typer.Exit(status)


@command("Example:  mha bench --backend numpy --backend torch --case causal")
def bench_command(
    *,
    backend: Annotated[
        list[str] | None, typer.Option("--backend", "-b", metavar="NAME", help="Only this backend; repeatable.")
    ] = None,
    case: Annotated[
        list[str] | None, typer.Option("--case", metavar="WORD", help="Only cases whose name contains WORD; repeatable.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Three rounds, for a first impression.")] = False,
    model: Annotated[
        Path | None,
        typer.Option("--model", "-m", metavar="DIR", help="Directory of a model for the text encoder; needs --texts."),
    ] = None,
    texts: Annotated[
        Path | None, typer.Option("--texts", metavar="FILE", help="File with one text per line for the text encoder.")
    ] = None,
    instructions: Annotated[
        bool,
        typer.Option(
            "--instructions", help="Count instructions by valgrind, on small cases of the same kinds, and time nothing."
        ),
    ] = False,
    here: Annotated[
        bool,
        typer.Option("--here", help="Time one attention with and without kernels such as mha-native's, in a few seconds."),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Time each backend against plain NumPy and the limits of this machine."""
    if (model is None) != (texts is None):
        raise typer.BadParameter("give both --model DIR and --texts FILE", param_hint="--model, --texts")
    if here and (quick or model or case or instructions):
        raise typer.BadParameter("it takes only --backend and --json", param_hint="--here")
    if instructions:
        if quick or model:
            raise typer.BadParameter("it takes only --backend, --case and --json", param_hint="--instructions")
        raise typer.Exit(_count(backend or [], case or [], as_json=as_json))
    from ..bench.worker import WorkerFailed
    from . import bench as benching  # it imports NumPy, which no other command needs at startup
    from . import here as on_this_machine

    with failing_clearly():
        try:
            with benching.watching(as_json=as_json) as watch:
                results = (
                    on_this_machine.run(backend or [], watch)
                    if here
                    else benching.run(backend or [], case or [], quick=quick, model=model, texts=texts, watch=watch)
                )
        except benching.Stopped as stopped:
            if stopped.results.rows and not as_json:
                benching.show(stopped.results)
            raise KeyboardInterrupt(str(stopped)) from stopped
        except benching.UnknownCase as error:
            raise typer.BadParameter(str(error), param_hint="--case") from error
        except (ValueError, WorkerFailed) as error:
            raise MhaError(str(error)) from error
        if as_json:
            typer.echo(json.dumps(results.record(), indent=2))
        else:
            on_this_machine.show(results) if isinstance(results, on_this_machine.Here) else benching.show(results)
    if any(row.wrong for row in results.rows):
        raise typer.Exit(1)


def _count(backends: list[str], words: list[str], *, as_json: bool) -> int:
    """Print the instructions of each backend's calls, and return the exit status."""
    from . import bench, instructions

    with failing_clearly():
        try:
            cases, skipped = instructions.cases(words)
        except ValueError as error:
            raise typer.BadParameter(str(error), param_hint="--case") from error
        names, notes = bench.usable(backends)
        results = instructions.run(names, cases, lambda line: typer.echo(line, err=True))
    if as_json:
        typer.echo(json.dumps(instructions.record(results, [*notes, *skipped]), indent=2))
    else:
        instructions.show(results)
        for line in (*notes, *skipped):
            typer.echo(line)
    return int(any(count.failed for row in results.values() for count in row.values()))


@command("Example:  mha report . ../colleague/results")
def report_command(
    folders: Annotated[
        list[Path] | None,
        typer.Argument(metavar="DIR...", help="Folders with asv.conf.json, or with asv's results alone; by default this one."),
    ] = None,
    *,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="PATH", help="File to write the page to.")] = Path(
        "report.html"
    ),
) -> None:
    """Write what asv has measured as one page that opens offline: newest figures, lasting changes, and plots.

    Exit codes: 0 written, 1 an error, 3 there are no results.
    """
    with failing_clearly():
        try:
            from . import report
        except ModuleNotFoundError as error:
            raise MhaError(f"{error.name} is missing; install the extra report of mha-conformance") from error
        try:
            typer.echo(report.write(folders or [Path()], output), err=True)
        except report.NoHistory as error:
            typer.echo(f"error: {error}", err=True)
            raise typer.Exit(3) from error
