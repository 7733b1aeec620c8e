"""The commands of ``mha``, their arguments and their exit codes: 0 done, 1 could not be done, 2 asked wrongly."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

import mha_core

from . import attend as attending
from . import backends as listing
from . import conform as conformance
from . import encode as encoding
from . import explain as explaining
from . import new_plugin as plugins

app = typer.Typer(
    name="mha",
    help="Attention on any array library: text vectors, backends, and what runs where.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"mha-core {mha_core.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")] = False,
) -> None:
    pass


@contextmanager
def _failing_clearly() -> Iterator[None]:
    """One line for what a user can mend: the message on standard error, and exit code 1. Warnings are one line too."""
    console = Console(stderr=True, soft_wrap=True, highlight=False)

    def show(message: Warning | str, *_: Any, **__: Any) -> None:
        console.print("[yellow]warning:[/yellow]", escape(str(message)))

    with warnings.catch_warnings():
        warnings.showwarning = show
        try:
            yield
        except BrokenPipeError:
            raise  # click ends quietly when a reader such as head has gone
        except (mha_core.MhaError, OSError, UnicodeError, ModuleNotFoundError) as error:
            console.print("[red]error:[/red]", _message(error))
            raise typer.Exit(1) from error


def _message(error: BaseException) -> str:
    if isinstance(error, ModuleNotFoundError):
        return escape(f"{error}: pip install 'mha-core[cli]'")
    return escape(str(error))


Files = Annotated[
    list[Path] | None,
    typer.Argument(
        metavar="FILE|-",
        help="Files of one text per line, UTF-8; - is standard input.",
        allow_dash=True,
    ),
]
Model = Annotated[
    str,
    typer.Option("--model", "-m", metavar="DIR|REPO", envvar="MHA_MODEL", help="A model's directory, or a repository id."),
]
Texts = Annotated[list[str] | None, typer.Option("--text", "-t", metavar="T", help="A text; may be given again.")]
Name = Annotated[
    str | None, typer.Option("--backend", "-b", metavar="NAME", help="numpy, or any other that `mha backends` lists.")
]
Output = Annotated[
    str | None,
    typer.Option(
        "--output",
        "-o",
        metavar="x.npy|-",
        help="Write an (n, d) array; - prints a JSON list per text, as is done without this option.",
    ),
]
Similar = Annotated[
    int | None, typer.Option("--similar", "-k", min=1, metavar="K", help="Print the K texts nearest to each instead.")
]


@app.command(epilog="Example:  mha encode --model DIR sentences.txt --similar 3")
def encode(
    *,
    model: Model,
    files: Files = None,
    text: Texts = None,
    backend: Name = None,
    output: Output = None,
    similar: Similar = None,
) -> None:
    """Turn texts into vectors with a pretrained encoder; or, with --similar, find the nearest texts to each."""
    if not files and not text:
        raise typer.BadParameter("give FILE..., - for standard input, or --text T", param_hint="FILE")
    for file in files or []:
        if str(file) != "-" and (file.is_dir() or not file.exists()):
            found = "is a directory" if file.is_dir() else "does not exist"
            raise typer.BadParameter(f"file {str(file)!r} {found}", param_hint="FILE")
    if output not in (None, "-") and not str(output).endswith(".npy"):
        raise typer.BadParameter(f"{output!r} does not end in .npy; give x.npy, or - for JSON lines", param_hint="--output")
    if output == "-" and similar:
        raise typer.BadParameter("--similar prints to standard output too: give a file", param_hint="--output")
    with _failing_clearly():
        encoding.run(files or [], text or [], model, backend, output, similar)


@app.command(epilog='Example:  mha attend "Some birds never land to rest." --model DIR --output page.html')
def attend(
    text: Annotated[str, typer.Argument(metavar="TEXT", help="A sentence.")],
    *,
    model: Model,
    backend: Name = None,
    output: Annotated[
        str,
        typer.Option(
            "--output", "-o", metavar="x.html|x.png|-", help="A page to explore, a picture, or - for a map right here."
        ),
    ] = "-",
    layer: Annotated[int | None, typer.Option("--layer", metavar="N", help="From 0; the last, or all in a picture.")] = None,
    head: Annotated[
        int | None, typer.Option("--head", metavar="N", help="From 0; the mean of all, or all in a picture.")
    ] = None,
) -> None:
    """Show what each head of a pretrained encoder attends to in a text."""
    if output != "-" and Path(output).suffix not in attending.WRITERS:
        endings = " or ".join(attending.WRITERS)
        raise typer.BadParameter(f"{output!r} does not end in {endings}; - prints a map", param_hint="--output")
    with _failing_clearly():
        attending.run(text, model, backend, output, layer, head)


@app.command(epilog="Example:  mha backends")
def backends(
    *,
    traceback: Annotated[bool, typer.Option("--traceback", help="Tell the whole of what is wrong.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print records for programs, tracebacks included.")] = False,
) -> None:
    """List the installed backends, each probed in a process of its own."""
    with _failing_clearly():
        rows = listing.report()
        if as_json:
            typer.echo(json.dumps(rows, indent=2))
        else:
            listing.show(rows, traceback=traceback)


@app.command(epilog="Example:  mha explain attention query=1x8x2048x64 mask='causal() & window(255, 0)' --backend torch")
def explain(
    op: Annotated[str, typer.Argument(metavar="OP", help="An operation, such as attention, gelu or encoder_layer.")],
    given: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME=VALUE...", help="A shape such as 8x512, a mask such as 'causal()', or a number."),
    ] = None,
    *,
    backend: Name = None,
    dtype: Annotated[str | None, typer.Option(metavar="NAME", help="float32, float16, and so on.")] = None,
    device: Annotated[str | None, typer.Option(metavar="NAME", help="One that `mha backends` lists.")] = None,
) -> None:
    """Tell which kernel a call would run on, and why every other would not; nothing is computed."""
    with _failing_clearly():
        try:
            explanation = explaining.run(op, given or [], backend=backend, dtype=dtype, device=device)
        except (ValueError, TypeError) as error:
            raise typer.BadParameter(str(error), param_hint="NAME=VALUE") from error
        explaining.show(explanation)


@app.command(epilog="Example:  mha conform torch --device cuda --dtype float16")
def conform(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The backend to judge: any that `mha backends` lists.")],
    *,
    device: Annotated[str | None, typer.Option("--device", metavar="D", help="One of its devices.")] = None,
    dtype: Annotated[
        list[str] | None, typer.Option("--dtype", metavar="T", help="Only this dtype; may be given again.")
    ] = None,
    plugin: Annotated[
        list[str] | None, typer.Option("--plugin", metavar="MODULE", help="Register a module that is not installed.")
    ] = None,
    expression: Annotated[str | None, typer.Option("-k", metavar="EXPRESSION", help="Only tests whose name matches.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer problems of each kind.")] = False,
    seed: Annotated[int, typer.Option("--seed", metavar="N", min=0, help="Of the random problems.")] = 0,
    report: Annotated[
        Path | None, typer.Option("--report", metavar="DIR", help="Write a certificate there: NAME[-DEVICE].json, and .md.")
    ] = None,
) -> None:
    """Judge a backend and its kernels by the conformance suite; exit codes are pytest's, 0 where all is right."""
    with _failing_clearly():
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
        typer.echo(f"error: nothing was judged: no test{selected} applies to backend {name!r}", err=True)
    raise typer.Exit(status)


@app.command(epilog="Example:  mha bench --backend numpy --backend torch --case causal")
def bench(
    *,
    backend: Annotated[
        list[str] | None, typer.Option("--backend", "-b", metavar="NAME", help="Only this one; may be given again.")
    ] = None,
    case: Annotated[
        list[str] | None, typer.Option("--case", metavar="WORD", help="Only cases with this in their name; may be given again.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Three rounds, for a first impression.")] = False,
    model: Annotated[Path | None, typer.Option("--model", "-m", metavar="DIR", help="The text encoder's directory.")] = None,
    texts: Annotated[Path | None, typer.Option("--texts", metavar="FILE", help="One text per line, for the encoder.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print records for programs.")] = False,
) -> None:
    """Time each backend beside plain NumPy, on this machine, and tell how near it comes to what the machine can do."""
    if (model is None) != (texts is None):
        raise typer.BadParameter("give both --model DIR and --texts FILE", param_hint="--model, --texts")
    from ..bench.worker import WorkerFailed
    from . import bench as benching  # it loads NumPy, which no other command needs to start

    with _failing_clearly():
        try:
            look = benching.run(backend or [], case or [], quick=quick, model=model, texts=texts)
        except benching.UnknownCase as error:
            raise typer.BadParameter(str(error), param_hint="--case") from error
        except (ValueError, WorkerFailed) as error:
            raise mha_core.MhaError(str(error)) from error
        if as_json:
            typer.echo(json.dumps(look.record(), indent=2))
        else:
            benching.show(look)
    if any(row.wrong for row in look.rows):
        raise typer.Exit(1)


@app.command(epilog="Example:  mha new-plugin mylibrary")
def new_plugin(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Of the backend; lower-case letters, digits, underscores.")],
    *,
    directory: Annotated[Path, typer.Option("--directory", "-d", metavar="DIR", help="Where mha-NAME is made.")] = Path("."),
) -> None:
    """Write a plugin's distribution that installs and passes conformance as it is, with the lines to replace marked."""
    try:
        plugins.check_name(name)
    except plugins.BadName as error:
        raise typer.BadParameter(str(error), param_hint="NAME") from error
    with _failing_clearly():
        root = plugins.write(name, directory)
        for path in plugins.written(root):
            typer.echo(path)
        typer.echo(f"\nnext:  cd {root} && pip install -e '.[test]' && python -m pytest tests")
