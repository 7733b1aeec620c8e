"""The commands of ``mha`` and their arguments.

Exit codes: 0 success; 1 an error; 2 a usage error; 130 after Ctrl-C.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

import mha_core

from . import backends as listing
from . import conform as conformance
from . import explain as explaining
from . import new_plugin as plugins
from . import texts
from .command import Command, failing_clearly

app = typer.Typer(
    name="mha",
    help="Attention on any array library: encode texts, inspect and test backends.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"mha-core {mha_core.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", "-V", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    pass


app.command(cls=Command, epilog="Example:  mha encode --model DIR sentences.txt --similar 3")(texts.encode)
app.command(cls=Command, epilog='Example:  mha attend "Some birds never land to rest." --model DIR --output page.html')(
    texts.attend
)


@app.command(cls=Command, epilog="Example:  mha backends")
def backends(
    *,
    traceback: Annotated[bool, typer.Option("--traceback", help="Show full tracebacks.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, tracebacks included.")] = False,
) -> None:
    """List the installed backends, and whether each works."""
    with failing_clearly():
        rows = listing.report()
        if as_json:
            typer.echo(json.dumps(rows, indent=2))
        else:
            listing.show(rows, traceback=traceback)


@app.command(
    cls=Command, epilog="Example:  mha explain attention query=1x8x2048x64 mask='causal() & window(255, 0)' --backend torch"
)
def explain(
    op: Annotated[str, typer.Argument(metavar="OP", help="An operation, such as attention, gelu or encoder_layer.")],
    given: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="NAME=VALUE...", help="An argument of OP: a shape such as 8x512, a mask such as 'causal()', or a number."
        ),
    ] = None,
    *,
    backend: texts.Name = None,
    dtype: Annotated[
        str | None, typer.Option(metavar="NAME", help="Dtype of the arrays, such as float16. Default: float32.")
    ] = None,
    device: Annotated[str | None, typer.Option(metavar="NAME", help="Device of the arrays; `mha backends` lists them.")] = None,
    gradients: Annotated[bool, typer.Option("--gradients", help="Explain the gradients too.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show which kernel a call would use, and why others are not chosen. Nothing is computed."""
    with failing_clearly():
        try:
            explanation = explaining.run(op, given or [], backend=backend, dtype=dtype, device=device, gradients=gradients)
        except explaining.BadArgument as error:
            raise typer.BadParameter(str(error), param_hint=error.argument) from error
        except (ValueError, TypeError) as error:
            raise typer.BadParameter(str(error), param_hint="NAME=VALUE") from error
        if as_json:
            typer.echo(json.dumps(explaining.record(explanation), indent=2))
        else:
            explaining.show(explanation)


@app.command(cls=Command, epilog="Example:  mha conform torch --device cuda --dtype float16")
def conform(
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
    seed: Annotated[int, typer.Option("--seed", metavar="N", min=0, help="Seed of the random problems.")] = 0,
    report: Annotated[
        Path | None, typer.Option("--report", metavar="DIR", help="Write a certificate to DIR: NAME[-DEVICE].json and .md.")
    ] = None,
) -> None:
    """Run the conformance suite on a backend and its kernels. Exit codes are pytest's."""
    with failing_clearly():
        status = conformance.conform(
            name,
            device=device,
            dtypes=dtype or (),
            plugins=plugin or (),
            expression=expression,
            quick=quick,
            seed=seed,
            report=report,
        )
    if status == conformance.NOTHING_RUN:
        selected = "" if expression is None else f" that matches -k {expression!r}"
        typer.echo(f"error: nothing was tested: no test{selected} applies to backend {name!r}", err=True)
    raise typer.Exit(status)


@app.command(cls=Command, epilog="Example:  mha bench --backend numpy --backend torch --case causal")
def bench(
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
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Time each backend against plain NumPy and the limits of this machine."""
    if (model is None) != (texts is None):
        raise typer.BadParameter("give both --model DIR and --texts FILE", param_hint="--model, --texts")
    from ..bench.worker import WorkerFailed
    from . import bench as benching  # it imports NumPy, which no other command needs at startup

    with failing_clearly():
        try:
            with benching.watching(as_json=as_json) as watch:
                results = benching.run(backend or [], case or [], quick=quick, model=model, texts=texts, watch=watch)
        except benching.Stopped as stopped:
            if stopped.results.rows and not as_json:
                benching.show(stopped.results)
            raise KeyboardInterrupt(str(stopped)) from stopped
        except benching.UnknownCase as error:
            raise typer.BadParameter(str(error), param_hint="--case") from error
        except (ValueError, WorkerFailed) as error:
            raise mha_core.MhaError(str(error)) from error
        if as_json:
            typer.echo(json.dumps(results.record(), indent=2))
        else:
            benching.show(results)
    if any(row.wrong for row in results.rows):
        raise typer.Exit(1)


@app.command(cls=Command, epilog="Example:  mha new-plugin mylibrary")
def new_plugin(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="Name of the backend or engine: lower-case letters, digits, underscores.")
    ],
    *,
    collectives: Annotated[
        bool, typer.Option("--collectives", help="An engine that sends arrays between processes, instead of a backend.")
    ] = False,
    directory: Annotated[
        Path, typer.Option("--directory", "-d", metavar="DIR", help="Parent of the new directory mha-NAME.")
    ] = Path("."),
) -> None:
    """Create a working plugin package, with the lines to replace marked."""
    kind = "engine" if collectives else "backend"
    try:
        plugins.check_name(name, kind)
    except plugins.BadName as error:
        raise typer.BadParameter(str(error), param_hint="NAME") from error
    with failing_clearly():
        root = plugins.write(name, directory, kind)
        for path in plugins.written(root):
            typer.echo(path)
        typer.echo(f"\nnext:  cd {root} && pip install -e '.[test]' && python -m pytest tests")
